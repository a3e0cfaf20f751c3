"""Timeline: the time of each instruction on its stream."""

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """One instruction's time on its stream, in seconds since the step began.

    `instruction` is its position in the schedule.
    """

    instruction: int
    stream: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One executed or simulated step.

    Attributes:
        spans: one for each instruction that joined a stream, in the order of issue.
        step_time_s: from the first instruction's issue until every stream is idle.
        host_waits_s: time for which kernels could run and are not issued yet; 0 of a step that was measured.
    """

    spans: tuple[Span, ...]
    step_time_s: float
    host_waits_s: float = 0.0

    def busy_s(self, stream: str) -> float:
        """Return the time for which the stream was working."""
        return sum(span.end_s - span.start_s for span in self.spans if span.stream == stream)

    def under_way_s(self, instructions: Container[int]) -> float:
        """Return the time for which at least one of these instructions was running."""
        total_s = until_s = 0.0
        for start_s, end_s in sorted((s.start_s, s.end_s) for s in self.spans if s.instruction in instructions):
            total_s += max(0.0, end_s - max(start_s, until_s))
            until_s = max(until_s, end_s)
        return total_s

    def exposed_s(self, instructions: Container[int]) -> float:
        """Return the time for which at least one of these instructions was running and no other instruction was."""
        edges = sorted(
            (time_s, change, span.instruction in instructions)
            for span in self.spans
            for time_s, change in ((span.start_s, 1), (span.end_s, -1))
        )
        active = {True: 0, False: 0}
        exposed_s = before_s = 0.0
        for time_s, change, is_one in edges:
            if active[True] and not active[False]:
                exposed_s += time_s - before_s
            active[is_one] += change
            before_s = time_s
        return exposed_s
