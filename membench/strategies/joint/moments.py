"""Moments: tasks at which the lower bound limits memory, and the gaps between uses of a block among them."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from membench.core.graph.task_graph import RESULT_ROLES
from membench.planning.choices.problem import Problem
from membench.strategies.joint.gaps import ANYWHERE, Gap, Saved, Saving, Span


def segments_of(durations: Sequence[float], turn: int, count: int) -> list[int]:
    """Return the segment of each task: the forward pass is one, the backward pass has parts of equal time.

    Args:
        turn: the first task of the backward pass.
    """
    backward = sum(durations[turn:]) or 1.0
    found, passed = [0] * turn, 0.0
    for duration in durations[turn:]:
        found.append(1 + min(count - 2, int(passed / backward * (count - 1))))
        passed += duration
    return found


class Moments:
    """Some tasks, in order: in parts of equal time the one that holds most, and the last task of each segment.

    Args:
        segments: each task's segment.
        held: what each task holds if nothing is away.
        most: number of parts; all tasks are moments where there are at most twice as many.
    """

    def __init__(self, durations: Sequence[float], segments: Sequence[int], held: Sequence[float], most: int) -> None:
        self.segments = segments
        self.tasks = _choose(durations, segments, held, most)
        self._segment_end = {segment: task + 1 for task, segment in enumerate(segments)}

    def at(self, position: int) -> int:
        """Return the first moment at or behind the task at this position."""
        return bisect_left(self.tasks, position)

    def span(self, gap: Gap, savings: Mapping[tuple[int, int], Sequence[Saving]]) -> Span | None:
        """Return the gap in moments; None where none lies in it.

        Args:
            savings: by block and position of its next use.
        """
        start, end = self.at(gap.last + 1), self.at(gap.first)
        again = self.at(gap.end + 1) if gap.last < 0 else None
        if start == end and again is None:
            return None
        remakes = []
        if gap.remake_s is not None:
            for segment in range(self.segments[gap.last + 1], self.segments[gap.first] + 1):
                away_until = min(end, self.at(self._segment_end[segment]))
                if away_until > start:
                    remakes.append((segment, away_until))
        out = None if gap.written is None else self.at(gap.written + 1)
        in_use = range(0) if out is None else range(out, start if again is None else again)
        return Span(
            gap.size_bytes,
            start,
            end,
            out,
            in_use,
            again,
            gap.leaves,
            tuple(remakes),
            gap.remake_s,
            self.saved(savings.get((gap.block, gap.first), ())),
            gap.gathers,
        )

    def saved(self, savings: Sequence[Saving]) -> tuple[Saved, ...]:
        """Return savings in moments."""
        return tuple(
            Saved(
                tuple((size, self.at(a), self.at(b)) for size, a, b in saving.frees),
                saving.cost_s,
                ANYWHERE if saving.task == ANYWHERE else self.segments[saving.task],
            )
            for saving in savings
        )


def _choose(durations: Sequence[float], segments: Sequence[int], held: Sequence[float], most: int) -> list[int]:
    if len(held) <= 2 * most:
        return list(range(len(held)))
    ends = np.cumsum(durations)
    part = (ends * (most / ends[-1])).astype(np.int64)
    chosen: dict[int, int] = {}
    for task, number in enumerate(part.tolist()):
        if held[task] > held[chosen.setdefault(number, task)]:
            chosen[number] = task
    last_of_segment = (task for task, (a, b) in enumerate(pairwise([*segments, -1])) if a != b)
    return sorted({*chosen.values(), *last_of_segment})


def held_by_tasks(problem: Problem, gaps: Iterable[Gap], states_bytes: int) -> list[int]:
    """Return what each task holds if blocks stay in their gaps; blocks without a gap count only while they are used.

    Args:
        states_bytes: size of the states whose updates could run on the device.
    """
    graph = problem.graph
    change = [0] * (len(graph.tasks) + 1)
    for gap in gaps:
        if gap.is_sent:
            continue
        change[gap.last + 1] += gap.size_bytes
        change[gap.first] -= gap.size_bytes
        if gap.last < 0:
            change[gap.end + 1] += gap.size_bytes
    held, results, found = graph.external_bytes + states_bytes, 0, []
    for task in graph.tasks:
        held += change[task.index]
        touched = (graph.blocks[block] for block in problem.touched[task.index])
        used = sum(b.size_bytes for b in touched if not b.is_external and b.role not in RESULT_ROLES)
        results += graph.size_bytes(b for b in task.creates if graph.blocks[b].role in RESULT_ROLES)
        found.append(held + used + results + task.workspace_bytes)
    return found
