"""Auto: the schedule of the fastest lossless method that keeps the budget, as simulated.

Every other method of this package for the step's mode is planned and simulated; what rounds is left out, and what
cannot be planned, and `by_module`, whose modules are for the user to name. Of equally fast schedules the one with the
lowest peak is taken. The schedule is that method's own; `reason` has the choice and the runner-up. The whole batch is
planned, so that batch norm's statistics are plain PyTorch's.

Ours. Not `joint`, which makes plans of its own: it is one of the candidates.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from membench.core.errors import InfeasibleSchedule, UnsupportedStrategy
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Mode, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.units import format_bytes, format_seconds
from membench.execution.simulation import step_time_s
from membench.strategies.base import Strategy, strategies
from membench.strategies.by_module import ByModule


class Auto(Strategy):
    """The fastest of the other methods that keeps the budget and gives plain PyTorch's results."""

    name = "auto"
    moves_weights = True  # some of the others do
    modes = frozenset(Mode)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        found: list[Schedule] = []
        refusals: list[InfeasibleSchedule] = []
        for method in strategies(graph.mode).values():
            if method not in (Auto, ByModule):
                try:
                    with suppress(UnsupportedStrategy):
                        found.append(method().schedule(graph, cost, budget_bytes))
                except InfeasibleSchedule as refusal:
                    refusals.append(refusal)
        timed = [(step_time_s(each, cost), each.peak_bytes, each) for each in found if not each.rounding]
        if not timed:
            raise min(refusals, key=lambda refusal: refusal.needed_bytes)
        ranked = sorted(timed, key=lambda candidate: candidate[:2])
        return replace(ranked[0][2], strategy=self.name, reason=_reason(ranked, len(refusals), budget_bytes))


def _reason(ranked: Sequence[tuple[float, int, Schedule]], refusals: int, budget_bytes: int | None) -> str:
    """Return a sentence about the choice.

    Args:
        ranked: seconds, peak and schedule of those that keep the budget, the fastest first.
    """
    limit = "without a budget" if budget_bytes is None else f"within {format_bytes(budget_bytes)}"
    described = [
        f"{each.strategy} ({format_seconds(time_s)}, peak {format_bytes(peak_bytes)})"
        for time_s, peak_bytes, each in ranked[:2]
    ]
    kept = f"{described[0]} is the fastest of {len(ranked)} lossless methods {limit}"
    refused = f", which {refusals} others exceed" if refusals else ""
    return f"{kept}{refused}" + (f"; next is {described[1]}" if described[1:] else "")
