"""MEMO: of each layer what hides behind its own forward pass is swapped, and the rest recomputed.

Zhao et al., "MEMO: Fine-grained Tensor Management for Ultra-long Context LLM Training", SIGMOD 2025. Of the activations
that a layer of a transformer keeps for its backward pass, its input and the output of attention always leave: of long
sequences, attention costs the most to compute again. Of the others a share leaves, the largest one with which

- the copies of the layer take no longer than its forward pass;
- all layers together fit in host memory.

The rest is computed again from the layer's input. The last two layers keep everything, as their backward passes begin
before it could have left.

Readings. The paper's share is one of tokens. Here it consists of whole activations, those with the most seconds of
recomputation for each byte first: products, SiLU and the tanh form of GELU give other bits for a part of the tokens
than for all of them, and no method may change the results. A layer is a stage of the forward pass that hands a single
activation on (`strategies.chain`), half a layer of a deep transformer; each has a share of its own. Masks of
dropout, which cannot be made again, leave as well. Copies start and return where `planning.choices` puts them, in place
of the paper's two buffers.

Left out: the integer programs that place activations without fragmentation. Taken from the paper's abstract and a
description of the method, not from its text.

Not `ratel`, whose share minimizes the time of a step over all layers, and which moves weights; not `capuchin`, which
evicts only what memory lacks.
"""

from collections.abc import Iterator
from math import inf

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, Problem, Unit
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.chain.stages import Chain, Stage

KEPT_LAYERS = 2
"""Number of layers at the end of the forward pass of which nothing leaves."""


class Memo(Strategy):
    """MEMO: swap a layer's input, attention output and a share of the others; recompute the rest (Zhao et al. 2025)."""

    name = "memo"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        # numba takes a second to import
        from membench.planning.choices.emit import emit
        from membench.planning.choices.evaluation import NO_LIMIT, Evaluator

        chain = Chain(join_convolution_backward(graph, cost), cost)
        choices = choices_of(chain, cost)
        evaluator = Evaluator(chain.problem)
        plan = evaluator.plan(choices, NO_LIMIT if budget_bytes is None else budget_bytes)
        if budget_bytes is not None and plan.step_s == inf:
            raise evaluator.refusal(choices, budget_bytes)
        return emit(self.name, plan, budget_bytes)


def choices_of(chain: Chain, cost: CostModel) -> list[int]:
    """Return which units leave, which are recomputed, and which are kept."""
    problem = chain.problem
    choices = [KEEP if unit.makers or not unit.stored else OFFLOAD for unit in problem.units]
    room_bytes = cost.host_limit.memory_bytes if cost.host_limit else inf
    room_bytes -= sum(unit.size_bytes for unit in problem.units if unit.stored and not unit.makers)
    handed_on: int | None = None  # the input of the layer
    for stage in chain.stages[:-KEPT_LAYERS]:
        output = None if stage.output is None else problem.unit_of[stage.output]
        within = stage.units - {output}
        always = {number for number in within if _is_attention(problem, problem.units[number])}
        always |= set() if handed_on is None else {handed_on}
        leaves = [*always, *_share(problem, stage, sorted(within - always), always, cost, room_bytes)]
        room_bytes -= sum(problem.units[number].size_bytes for number in leaves)
        for number in within:
            choices[number] = RECOMPUTE
        for number in leaves:
            choices[number] = OFFLOAD
        handed_on = output
    return choices


def _is_attention(problem: Problem, unit: Unit) -> bool:
    return unit.stored and any(problem.graph.tasks[task].kind is Kind.ATTENTION for task in unit.makers)


def _share(
    problem: Problem, stage: Stage, others: list[int], always: set[int], cost: CostModel, room_bytes: float
) -> Iterator[int]:
    """Yield those units of a layer that leave in addition to others, while time and host memory suffice."""
    size_bytes = sum(problem.units[number].size_bytes for number in always)
    stored = [number for number in others if problem.units[number].stored]
    for number in sorted(stored, key=lambda n: -problem.units[n].remake_s / problem.units[n].size_bytes):
        more_bytes = size_bytes + problem.units[number].size_bytes
        if more_bytes <= room_bytes and cost.offload_time_s(more_bytes) <= stage.forward_s:
            size_bytes = more_bytes
            yield number
