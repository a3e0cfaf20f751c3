"""Schedules of other methods within a budget: candidates, and starting points of the search.

All give plain PyTorch's bits. `rotor` is not asked: `pofo` considers its schedules. `checkmate` is, where its program
is so small that it is solved in a second, and `dtr`, up to the length that programs of `joint` have. Of a rank's step
the program's own schedule is a candidate too, with its checkpointing, with weights gathered for each pass and once for
both; its graph is another one, so that the search does not start from it.
"""

from collections.abc import Iterator
from contextlib import suppress

from membench.core.errors import MembenchError
from membench.core.graph.schedule import Offload, Schedule
from membench.core.graph.task_graph import RECOMPUTED_SUFFIX, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.execution.simulation import step_time_s
from membench.planning.choices.loops import LONGEST
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, Choices, Problem
from membench.planning.parallel.gathering import gathered_once
from membench.strategies.base import Strategy
from membench.strategies.capuchin import Capuchin
from membench.strategies.checkmate import Checkmate
from membench.strategies.dtr import Dtr
from membench.strategies.eager import Eager
from membench.strategies.geeps import GeePS
from membench.strategies.gist import Gist
from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter, LayrubIntra
from membench.strategies.memo import Memo
from membench.strategies.memonger import Memonger
from membench.strategies.pofo import Pofo
from membench.strategies.pytorch import PyTorch
from membench.strategies.ratel import Ratel
from membench.strategies.superneurons import SuperNeurons
from membench.strategies.vdnn import VdnnAll, VdnnConv, VdnnDyn
from membench.strategies.zero_infinity import ZeroInfinity
from membench.strategies.zero_offload import ZeroOffload

MOST_NODES = 8
"""The largest program of `checkmate` that is solved."""

METHODS: tuple[Strategy, ...] = (
    Eager(), SuperNeurons(), VdnnAll(), VdnnConv(), VdnnDyn(), GeePS(), Memonger(), LayrubIntra(), LayrubInter(),
    LayrubHybrid(), Gist(), Capuchin(), Dtr(LONGEST), Pofo(), Checkmate(most_nodes=MOST_NODES), ZeroOffload(),
    ZeroInfinity(), Ratel(), Memo(),
)  # fmt: skip


Timed = tuple[float, Schedule]
"""Simulated seconds of a step, and its schedule."""


class Others:
    """The schedules of the methods that keep a budget, made when they are asked for first.

    Args:
        stays_s: a lower bound on the time of schedules with weights on the device; infinite where none keeps the
            budget.
    """

    def __init__(self, graph: TaskGraph, cost: CostModel, budget_bytes: int, stays_s: float) -> None:
        self._graph, self._cost, self.budget_bytes = graph, cost, budget_bytes
        self._stays_s = stays_s
        self._timed: tuple[Timed, ...] | None = None

    def timed(self, slowest_s: float) -> tuple[Timed, ...]:
        """Return the schedule of each method that keeps the budget; the first call makes them.

        Args:
            slowest_s: a method may be left out where its schedule takes longer.
        """
        if self._timed is None:
            self._timed = tuple(map(self.timed_of, self._schedules(slowest_s)))
        return self._timed

    def own(self) -> Iterator[Timed]:
        """Yield the program's own schedules of a rank's step that keep the budget."""
        if any(task.collective for task in self._graph.tasks):
            for graph in (self._graph, gathered_once(self._graph)):
                with suppress(MembenchError):
                    yield self.timed_of(PyTorch().schedule(graph, self._cost, self.budget_bytes))

    def timed_of(self, schedule: Schedule) -> Timed:
        """Return a schedule with its seconds."""
        return step_time_s(schedule, self._cost), schedule

    def _schedules(self, slowest_s: float) -> Iterator[Schedule]:
        for method in METHODS:
            if not method.moves_weights and slowest_s <= self._stays_s:
                continue
            asked = Dtr(method.longest, slowest_s) if isinstance(method, Dtr) else method
            with suppress(MembenchError):
                yield asked.schedule(self._graph, self._cost, self.budget_bytes)

    def choices(self, problem: Problem, slowest_s: float) -> Iterator[Choices]:
        """Yield the choices for a graph variant's units that come closest to each schedule, the fastest first."""
        for _, schedule in sorted(self.timed(slowest_s), key=lambda timed: timed[0]):
            yield self._choices_of(problem, schedule)

    def _choices_of(self, problem: Problem, schedule: Schedule) -> Choices:
        """Return recompute where any block of a unit has a copy, or else offload where any is copied to the host."""
        rewritten = schedule.graph.blocks[len(self._graph.blocks) :]
        copied = {block.name for block in rewritten if block.name.endswith(RECOMPUTED_SUFFIX)}
        again = {block.index for block in self._graph.blocks if f"{block.name}{RECOMPUTED_SUFFIX}" in copied}
        away = {each.block for each in schedule.instructions if isinstance(each, Offload)}
        return [
            RECOMPUTE
            if unit.makers and not again.isdisjoint(unit.blocks)
            else KEEP
            if away.isdisjoint(unit.blocks)
            else OFFLOAD
            for unit in problem.units
        ]
