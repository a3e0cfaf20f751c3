"""Occupancy: device memory over a step, by holder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from membench.core.graph.schedule import COMPUTE_STREAM, Schedule
from membench.core.graph.timeline import Timeline
from membench.pictures.observed_step import ObservedStep
from membench.planning.memory.holders import held_bytes


@dataclass(frozen=True)
class Occupancy:
    """Device memory over a step, in columns of time.

    Attributes:
        ends_s: end of each column, increasing; the first column begins at 0, each other at the end of the one before.
        held_bytes: for each holder, a number per column. Holders without any memory are left out.
    """

    ends_s: NDArray[np.float64]
    held_bytes: Mapping[str, NDArray[np.int64]]

    @property
    def total_bytes(self) -> NDArray[np.int64]:
        """Bytes of all holders together, in each column."""
        return np.sum(list(self.held_bytes.values()), axis=0)

    @property
    def peak(self) -> int:
        """The first column in which the most is held."""
        return int(self.total_bytes.argmax())


def occupancy(step: ObservedStep) -> Occupancy:
    """Return the occupancy over a step, run after run."""
    of_runs = [(_of_schedule(run.schedule, run.timeline), run.count) for run in step.runs]
    return _concatenated([found for found, count in of_runs for _ in range(count)])


def _concatenated(runs: Sequence[Occupancy]) -> Occupancy:
    """Return successive occupancies as one; a holder that a run does not have holds 0 bytes there."""
    names = dict.fromkeys(name for run in runs for name in run.held_bytes)
    starts_s = np.cumsum([0.0, *(run.ends_s[-1] for run in runs[:-1])])
    ends_s = np.concatenate([start_s + run.ends_s for start_s, run in zip(starts_s, runs, strict=True)])
    held_bytes = {
        name: np.concatenate([run.held_bytes.get(name, np.zeros(len(run.ends_s), dtype=np.int64)) for run in runs])
        for name in names
    }
    return Occupancy(ends_s, held_bytes)


def _of_schedule(schedule: Schedule, timeline: Timeline) -> Occupancy:
    """Return the occupancy while each task of the compute stream runs, including workspace.

    As in `average_bytes`, memory changes at the compute stream's position: a column lasts from the end of one task to
    the end of the next. It shows the peak of the instructions issued in that time, so that the highest column is the
    schedule's peak; instructions after the last task count with that task.
    """
    by_holder = held_bytes(schedule)
    total_bytes = np.sum(list(by_holder.values()), axis=0)
    spans = [span for span in timeline.spans if span.stream == COMPUTE_STREAM]
    first_issued = [0, *(span.instruction + 1 for span in spans[:-1])]
    worst = _argmax_between(total_bytes, [*first_issued, len(schedule)])
    ends_s = np.array([span.end_s for span in spans])
    ends_s[-1:] = timeline.step_time_s
    held = {name: values[worst] for name, values in by_holder.items()}
    return Occupancy(ends_s, {name: values for name, values in held.items() if values.any()})


def thin(full: Occupancy, columns: int) -> Occupancy:
    """Return the occupancy in at most that many columns; columns that are merged keep their peak."""
    count = len(full.ends_s)
    if count <= columns:
        return full
    edges_s = np.linspace(0.0, full.ends_s[-1], columns + 1)[1:-1]
    starts = np.unique(np.concatenate([[0], np.searchsorted(full.ends_s, edges_s)]))
    worst = _argmax_between(full.total_bytes, [*starts.tolist(), count])
    ends = np.append(starts[1:], count) - 1
    return Occupancy(full.ends_s[ends], {name: held[worst] for name, held in full.held_bytes.items()})


def _argmax_between(values: NDArray[np.int64], edges: list[int]) -> NDArray[np.int64]:
    """Return the position of the greatest value between each two edges."""
    return np.array([start + int(values[start:stop].argmax()) for start, stop in pairwise(edges)], dtype=np.int64)
