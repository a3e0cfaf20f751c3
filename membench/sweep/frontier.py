"""Frontiers: strategies under budgets, from the least that one can be given to eager's peak.

    every strategy without a budget -> the least feasible budget -> budgets in equal ratios up to eager's peak

A strategy runs under each budget below the peak that it has without one. A budget that it cannot keep is not a point.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import sqrt

from membench.core.errors import MembenchError
from membench.core.record import Configuration, Outcome, Record
from membench.core.terminal import progress_bar
from membench.pictures.frontier import Frontier, FrontierPoint
from membench.sweep.processes.worker import Workers
from membench.sweep.results.records import Records

EAGER = "eager"
HALVINGS = 3
"""Of the ratio between a budget that is too small and one that is kept, to find the least one."""


class Cells:
    """Runs simulated cells of one model in several processes, each of which has captured the model before.

    Args:
        workers: starts the processes, one for each thread.
        records: made with the run method of `workers`.
        first: a cell with which a process captures the model; its time does not count.
        threads: number of processes.
    """

    def __init__(self, workers: Workers, records: Records, first: Configuration, threads: int) -> None:
        self._workers, self._records, self._first = workers, records, first
        self._pool = ThreadPoolExecutor(threads)
        self._of_thread = threading.local()
        self._bar = progress_bar("cells", "cell")

    def __enter__(self) -> "Cells":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error:
            self._workers.close()
        self._pool.shutdown(cancel_futures=True)
        self._bar.close()

    def run(self, cells: Sequence[Configuration]) -> list[Record]:
        """Return the records of cells, in their order."""
        return list(self._pool.map(self._run, cells))

    def times_s(self, cells: Sequence[Configuration]) -> list[float]:
        """Return the seconds that cells took which have a record."""
        return [time_s or 0.0 for time_s in self._records.expected_time_s(cells)]

    def _run(self, cell: Configuration) -> Record:
        if self._records.is_due(cell) and not hasattr(self._of_thread, "has_captured"):
            self._workers.run(self._first)
            self._of_thread.has_captured = True
        record = self._records.run(cell)
        self._bar.update()
        return record


def sweep(
    step: Configuration, strategies: Mapping[str, Configuration], budgets: int, cells: Cells, title: str
) -> tuple[Frontier, list[Record]]:
    """Return the frontier of a step, and the records of all cells that ran for it.

    Args:
        step: the configuration of a simulated cell by eager execution, whose strategy and budget are replaced.
        strategies: by name; the least feasible budget is that of the first.
        budgets: how many are tried, the ends included.

    Raises:
        MembenchError: the step cannot be simulated by eager execution.
    """

    def cell(name: str, budget_bytes: int | None = None) -> Configuration:
        return step | {"strategy": strategies[name], "budget": budget_bytes}

    eager, *free = cells.run([step, *(cell(name) for name in strategies)])
    if not _is_point(eager):
        raise MembenchError(f"{EAGER}: {eager.reason}")
    found = list(zip(strategies, free, strict=True))
    eager_bytes, first = _peak_bytes(eager), next(iter(strategies))
    peaks = {name: _peak_bytes(record) for name, record in found if _is_point(record)}
    least, tried = least_budget(
        lambda budget: cells.run([cell(first, budget)])[0],
        int(eager.metrics["lower_bound_bytes"]),
        min([eager_bytes, *peaks.values()]),
    )
    found += [(first, record) for record in tried]
    under = [
        (name, budget)
        for name in strategies
        for budget in between(least, eager_bytes, budgets)
        if budget < peaks.get(name, 0)
    ]
    records = cells.run([cell(name, budget) for name, budget in under])
    found += [(name, record) for (name, _), record in zip(under, records, strict=True)]
    times_s = cells.times_s([record.configuration for _, record in found])
    return _frontier(title, eager, found, times_s), [eager, *(record for _, record in found)]


def _frontier(title: str, eager: Record, found: Sequence[tuple[str, Record]], times_s: Sequence[float]) -> Frontier:
    """Return the frontier of records with the names of their strategies, whose order is that of their first records."""
    points = {
        _point(name, record, time_s): None
        for (name, record), time_s in zip(found, times_s, strict=True)
        if _is_point(record)
    }
    order = list(dict.fromkeys(name for name, _ in found))
    unlimited_bytes = _peak_bytes(eager)
    return Frontier(
        title=title,
        eager=_point(EAGER, eager, 0.0),
        points=tuple(
            sorted(points, key=lambda each: (order.index(each.strategy), each.budget_bytes or unlimited_bytes))
        ),
        capacity_bytes=int(eager.metrics["capacity_bytes"]),
    )


def between(least: int, most: int, count: int) -> list[int]:
    """Return so many sizes from the least to the most, each the same multiple of the one before."""
    ratio = (most / least) ** (1 / max(1, count - 1))
    return [*(int(least * ratio**number) for number in range(count - 1)), most]


def least_budget(run: Callable[[int], Record], infeasible: int, kept: int) -> tuple[int, list[Record]]:
    """Return a small budget that is kept, between two others, and the records of those that were tried."""
    tried = []
    for _ in range(HALVINGS):
        middle = int(sqrt(infeasible * kept))
        tried.append(run(middle))
        if _is_point(tried[-1]):
            kept = middle
        else:
            infeasible = middle
    return kept, tried


def _is_point(record: Record) -> bool:
    """Return whether a step was planned and simulated, whether the device has the memory or not."""
    return record.outcome in (Outcome.OK, Outcome.OUT_OF_MEMORY) and "oracular_step_time_s" in record.metrics


def _peak_bytes(record: Record) -> int:
    return int(record.metrics["required_memory_bytes"])


def _point(strategy: str, record: Record, time_s: float) -> FrontierPoint:
    return FrontierPoint(
        strategy=strategy,
        budget_bytes=record.configuration["budget"],
        peak_bytes=_peak_bytes(record),
        step_time_s=record.metrics["oracular_step_time_s"],
        fits=record.outcome is Outcome.OK,
        lower_bound_s=record.layer_metrics.get("lower_bound_s"),
        gap=record.layer_metrics.get("gap"),
        planning_time_s=time_s,
    )
