"""By module: what some modules make leaves for host memory, what others make is computed again, and the rest stays.

The choice is the user's, as in Megatron-core (``--offload-modules``, ``--recompute-modules``) and in torch's policies
for checkpoints (``CheckpointPolicy.MUST_CPU_OFFLOAD``, ``MUST_RECOMPUTE``):

    for each activation, of the modules that it is made in, the innermost one that an option names:
        offload:    it leaves once it is made, and comes back before the backward pass needs it
        recompute:  it is dropped, and computed again from what is kept or has left
        none:       it stays
    what a recomputed module hands on to another one stays, or leaves if the module is named under `offload` as well

So ``recompute=["layers.*"]`` is `torch.utils.checkpoint` around each layer, with ``offload=["layers.*"]`` in addition
it is Unsloth's, whose checkpoints are in host memory, and ``offload=["layers.*.attention"]`` with the first one keeps
attention from running again.

Readings. A name is a path as `torch.nn.Module.named_modules` has it, with ``*``, ``?`` and ``[...]`` within one part of
it; what a module computes itself, such as an addition, has the module's path and the operator's name. Activations below
a 128th of the largest one stay, where Megatron-core has a least size. What cannot run twice, such as the masks of
dropout, stays or leaves. Copies start and return where `planning.choices` puts them; what would have to return before
it has left stays. A budget is kept or refused, and changes nothing. Megatron-core offloads what a module reads; here it
is what a module makes.

Not `memo`, which chooses a share of each layer by time, and not `joint`, which chooses everything.
"""

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from itertools import accumulate

from membench.core.checks import Requirement, check
from membench.core.errors import UnsupportedStrategy, unknown
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, Problem, Unit, large_bytes
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy

_PATTERNS = Requirement(
    "a list of paths of modules, such as [layers.*.attention]",
    lambda value: not isinstance(value, str) and isinstance(value, Iterable) and all(isinstance(v, str) for v in value),
)


class ByModule(Strategy):
    """Offload or recompute what named modules make (Megatron-core's offload and recompute modules).

    Args:
        offload: paths of modules whose activations leave for host memory, with ``*`` within a part of a path.
        recompute: paths of modules whose activations are computed again, but those that they hand on to each other.
    """

    name = "by_module"
    plans_for_budgets = False

    def __init__(self, offload: Collection[str] = (), recompute: Collection[str] = ()) -> None:
        check(_PATTERNS, offload=offload, recompute=recompute)
        self._offload, self._recompute = tuple(offload), tuple(recompute)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        # numba takes a second to import
        from membench.planning.choices.emit import emit
        from membench.planning.choices.evaluation import NO_LIMIT, Evaluator

        graph = join_convolution_backward(graph, cost)
        problem = Problem(graph, cost, large_bytes(graph))
        return emit(self.name, Evaluator(problem).plan(list(self._choices(problem)), NO_LIMIT), budget_bytes)

    def _choices(self, problem: Problem) -> Iterator[int]:
        """Yield the fate of each unit.

        Raises:
            UnsupportedStrategy: an option names no module; contains names that are like it.
        """
        graph = problem.graph
        forward = graph.tasks[: problem.turn]
        paths = dict.fromkeys(path for task in forward for path in _around(graph.layers[task.layer]))
        for pattern in (*self._offload, *self._recompute):
            if not any(_matches(path, pattern) for path in paths):
                raise UnsupportedStrategy(unknown("module", pattern, paths))
        users: dict[int, set[str]] = {}  # by block: layers of the forward pass that touch it
        for task in forward:
            for block in (*task.reads, *task.writes):
                users.setdefault(block, set()).add(graph.layers[task.layer])

        @cache
        def innermost(layer: str, patterns: tuple[str, ...]) -> str:
            named = (path for path in _around(layer) if any(_matches(path, each) for each in patterns))
            return max(named, key=len, default="")

        def is_start(unit: Unit, module: str) -> bool:
            layers = (layer for block in unit.blocks for layer in users[block])
            return any(innermost(layer, self._recompute) not in ("", module) for layer in layers)

        for unit in problem.units:
            layer = graph.layers[graph.blocks[unit.blocks[0]].layer]
            leaves, again = innermost(layer, self._offload), innermost(layer, self._recompute)
            if again and len(again) >= len(leaves) and unit.makers and not is_start(unit, again):
                yield RECOMPUTE
            else:
                yield OFFLOAD if leaves else KEEP


def _around(layer: str) -> Iterable[str]:
    """Return the paths of a layer and of the modules around it, the outermost first."""
    return accumulate(layer.split("."), "{}.{}".format)


def _matches(path: str, pattern: str) -> bool:
    parts, wanted = path.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
