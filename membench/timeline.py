"""Timeline: what ran when, on which stream, and how much memory was in use."""

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
        spans: in the order of issue.
        step_time_s: from the first instruction's issue until every stream is idle.
    """

    spans: tuple[Span, ...]
    step_time_s: float

    def busy_s(self, stream: str) -> float:
        """Return the time in which the stream was working."""
        return sum(span.end_s - span.start_s for span in self.spans if span.stream == stream)
