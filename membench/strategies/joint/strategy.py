"""Joint: keep, offload, recompute or encode each stored block, chosen together under a budget, with a lower bound on the time.

A step's time is that of its tasks, of what is computed again, and of waiting for copies. The method

1. solves a linear program that the schedules of a large class satisfy (`bound`): its value is a lower bound on their time,
2. takes from its solution, rounded, which ReLUs have masks, which index maps of pooling are stored in fewer bits, and which
   algorithm each convolution has (`variants`), compares some such variants of the graph, and adds or drops single encodings,
3. starts from the rounded solution and from offloading everything, and changes choices while that makes the step shorter
   (`search`); each set of choices is timed by planning its copies (`evaluation`): a copy to the host starts when its block
   is written, and the block's memory is given back when the copy has ended or memory is needed; a copy back takes memory as
   late as the link allows. Convolutions then get the fastest algorithms for which this leaves room,
4. takes another lossless method's schedule where that is faster within the budget: so it is never slower than any of them,
5. states the bound (`lower_bound_s`) and by how much the step exceeds it (`gap`) in the schedule's decisions.

Where no plan keeps the budget with weights, accumulators and an optimizer's states on the device, these have their home in
host memory, and each stays on the device throughout or comes for its uses and leaves after them. The update runs on the
device. The bound is then that of the schedules that may do so; at larger budgets, of those that leave them on the device.

Without a budget the step takes the time of the fastest algorithms, which is eager's where the device offers no choice, with the
least memory found that costs no time. Masks and narrow index maps are written by PyTorch's operators, a byte and two or four
bytes for each element; Gist's bits are finer, and its schedule is one of those under 4. Not its codec for sparse maps, whose
size depends on the data.

Ours; related are POFO (Beaumont, Eyraud-Dubois, Shilova, NeurIPS 2021) and Capuchin (Peng et al., ASPLOS 2020), which choose
between the same means by other rules.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from membench.backends.simulated import SimulatedBackend
from membench.core.cost_model import CostModel
from membench.core.errors import MembenchError
from membench.core.schedule import Schedule
from membench.core.task_graph import Role, TaskGraph
from membench.execution.executor import execute
from membench.planning.rewrite import keep_on_host
from membench.strategies.base import Strategy
from membench.strategies.eager import Eager
from membench.strategies.geeps import GeePS
from membench.strategies.gist import Gist
from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter, LayrubIntra
from membench.strategies.memonger import Memonger
from membench.strategies.superneurons import SuperNeurons
from membench.strategies.vdnn import VdnnAll, VdnnConv, VdnnDyn

if TYPE_CHECKING:
    from membench.strategies.joint.planner import Planner

OTHERS: tuple[Strategy, ...] = (
    Eager(), SuperNeurons(), VdnnAll(), VdnnConv(), VdnnDyn(), GeePS(), Memonger(), LayrubIntra(), LayrubInter(), LayrubHybrid(),
    Gist(),
)  # fmt: skip
"""Methods that give plain PyTorch's bits, and whose schedules are candidates."""


OF_WEIGHTS = frozenset({Role.WEIGHT, Role.ACCUMULATED, Role.OPTIMIZER_STATE})
"""What can have its home in host memory."""

SMALLEST_HOME = 1 / 256
"""Blocks smaller than this share of the largest one of them stay on the device."""


class Joint(Strategy):
    """Keep, offload or recompute each stored block, chosen together under a budget; states a lower bound on the time."""

    name = "joint"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        # numba and scipy take a second to import, which no other strategy needs
        from membench.planning.choices.emit import emit
        from membench.strategies.joint.planner import Planner

        planner = Planner(graph, cost)
        if budget_bytes is None:
            least = emit(self.name, planner.without_loss_of_time(), None)
            return _certified(least, step_time_s(least, cost), planner.compute_s)
        candidates: list[Schedule] = []
        if budget_bytes >= graph.external_bytes:
            candidates += self._of_planner(planner, budget_bytes)
            candidates += self._of_others(graph, cost, budget_bytes)
        if not candidates:
            planner = Planner(with_homes(graph), cost)
            candidates += self._of_planner(planner, budget_bytes)
        if not candidates:
            raise planner.refusal(budget_bytes)
        timed = ((step_time_s(schedule, cost), schedule.peak_bytes, schedule) for schedule in candidates)
        step_s, _, fastest = min(timed, key=lambda candidate: candidate[:2])
        return _certified(fastest, step_s, planner.lower_bound_s(budget_bytes, step_s))

    def _of_planner(self, planner: "Planner", budget_bytes: int) -> list[Schedule]:
        from membench.planning.choices.emit import emit

        plan = planner.within(budget_bytes)
        return [emit(self.name, plan, budget_bytes)] if plan else []

    def _of_others(self, graph: TaskGraph, cost: CostModel, budget_bytes: int) -> Iterator[Schedule]:
        for other in OTHERS:
            with suppress(MembenchError):
                yield replace(other.schedule(graph, cost, budget_bytes), strategy=self.name)


def with_homes(graph: TaskGraph) -> TaskGraph:
    """Return the graph with weights, accumulators and an optimizer's states in host memory, but for small ones."""
    sizes = (block.size_bytes for block in graph.blocks if block.role in OF_WEIGHTS)
    least_bytes = int(max(sizes, default=0) * SMALLEST_HOME)
    return keep_on_host(graph, OF_WEIGHTS, updated=True, least_bytes=least_bytes)


def step_time_s(schedule: Schedule, cost: CostModel) -> float:
    """Return the simulated seconds of a schedule."""
    return execute(schedule, SimulatedBackend(schedule.graph, cost)).step_time_s


def _certified(schedule: Schedule, step_s: float, lower_bound_s: float) -> Schedule:
    """Return the schedule with the lower bound among its decisions, and by how much the step exceeds it."""
    gap = step_s / lower_bound_s - 1 if lower_bound_s else 0.0
    return replace(schedule, decisions=(("lower_bound_s", lower_bound_s), ("gap", max(0.0, gap))))
