"""POFO: for each stage of a chain store, recompute or offload, as one dynamic program.

Beaumont, Eyraud-Dubois, Shilova, "Efficient Combination of Rematerialization and Offloading for Training DNNs", NeurIPS
2021. A stage either stores all that its backward pass reads, or begins a run of stages that store nothing and are
recomputed later from the run's input by `rotor`'s table in the memory that is left. Before either, its input (all that
the stage before stores, or its output alone) is kept or offloaded. The state is (i, A, dF, dB, bar): the stage; bytes
kept; bytes that still have to leave; bytes that have to be fetched before the stage's backward pass begins; and which
input it has. While a stage runs, the link drains dF forward and dB backward; where memory lacks, the stage waits for
the link.

Readings. Stages and weight gradients as in `rotor`. The paper rounds bytes up to slots; here states whose bytes fall in
the same classes are one, whose fastest member is continued with its bytes as they are, because a stage often drains
less than one slot. While a run is recomputed, what is fetched ahead is there from its start, or fetched after its end.
The decisions are taken for several budgets around the given one; of their schedules, and of `rotor`'s, which copies
nothing, the fastest that keeps the budget in bytes is chosen. Copies start and return where `planning.choices` puts
them: out as soon as a block is written, back as late as the link allows; where a task still lacks memory, these let
blocks leave that have no choice here. Without a budget nothing leaves.

Not `rotor`, which copies nothing; not `joint`, which decides for each block.
"""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.chain.stages import Chain
from membench.strategies.eager import Eager
from membench.strategies.rotor import Tables, peak_bytes

if TYPE_CHECKING:
    from membench.planning.choices.evaluation import EvaluatedChoices

AROUND = (1.1, 1.05, 1.0, 0.97, 0.94, 0.9, 0.85)
"""Budgets of the decisions, in given budgets."""

FINENESS = 1 / 64
"""The least budget is sought to within this share of itself."""


class Pofo(Strategy):
    """POFO: recompute and offload the stages of a chain, by dynamic programming (Beaumont et al. 2021).

    Args:
        slots: the memory of rotor's table is divided into at most that many.
    """

    name = "pofo"

    def __init__(self, slots: int = 500) -> None:
        self._slots = slots

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        # numba takes a second to import
        from membench.planning.choices.emit import emit

        eager = Eager().schedule(graph, cost, None)
        if budget_bytes is None or eager.peak_bytes <= budget_bytes:
            return Schedule(self.name, eager.graph, eager.instructions, eager.peak_bytes)
        chain = Chain(join_convolution_backward(graph, cost), cost)
        tables = Tables(chain, eager.peak_bytes, self._slots)
        plan = self._fastest(tables, cost, budget_bytes)
        if plan is None:
            raise InfeasibleSchedule(
                task="the step",
                needed_bytes=self._needed_bytes(tables, cost, budget_bytes, eager.peak_bytes),
                budget_bytes=budget_bytes,
                lower_bound_bytes=chain.problem.graph.lower_bound_bytes,
            )
        return emit(self.name, plan, budget_bytes)

    def _fastest(self, tables: Tables, cost: CostModel, budget_bytes: int) -> "EvaluatedChoices | None":
        """Return the fastest plan within a budget; None where there is none."""
        from membench.planning.choices.evaluation import Evaluator
        from membench.strategies.chain.offloading import choices_of

        plans = self._offloading(tables, cost, budget_bytes, AROUND)
        if without_copies := tables.fastest(budget_bytes):
            evaluator = Evaluator(tables.chain.problem)
            program = evaluator.program_of(without_copies)
            plans.append(evaluator.plan_of(program, choices_of(tables.chain, ()), budget_bytes))
        best = min(plans, key=lambda plan: plan.step_s, default=None)
        return None if best is None or best.step_s == inf else best

    def _offloading(
        self, tables: Tables, cost: CostModel, budget_bytes: int, shares: Sequence[float]
    ) -> "list[EvaluatedChoices]":
        """Return plans within a budget, with decisions for these shares of it; infinitely long where it is not kept."""
        from membench.planning.choices.evaluation import Evaluator
        from membench.strategies.chain.offloading import choices_of, order_of, plan_groups

        chain, table = tables.chain, tables.largest
        plans: list[EvaluatedChoices] = []
        evaluator = Evaluator(chain.problem)
        rooms_bytes = [int(share * budget_bytes) - chain.fixed_bytes for share in shares]
        different = dict.fromkeys(plan_groups(table, cost, room) for room in rooms_bytes if room > 0)
        for groups in filter(None, different):
            program = evaluator.program_of(order_of(table, groups))
            plans.append(evaluator.plan_of(program, choices_of(chain, groups), budget_bytes))
        return plans

    def _needed_bytes(self, tables: Tables, cost: CostModel, budget_bytes: int, eager_bytes: int) -> int:
        """Return a budget that can be kept, above one that cannot: by halving, up to what `rotor` needs."""
        graph = tables.chain.problem.graph
        without_copies = tables.fastest(budget_bytes)
        least = max(budget_bytes, graph.lower_bound_bytes - 1, tables.chain.fixed_bytes)
        most = min(eager_bytes, peak_bytes(graph, without_copies)) if without_copies else eager_bytes
        while most - least > max(1, most * FINENESS):
            middle = (least + most) // 2
            kept = [plan for plan in self._offloading(tables, cost, middle, (1.0,)) if plan.step_s < inf]
            if kept:
                most = kept[0].peak_bytes
            else:
                least = middle
        return most
