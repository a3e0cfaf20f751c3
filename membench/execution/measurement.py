"""What a run really held and took."""

from collections.abc import Callable
from typing import Any

import torch


def cpu_peak_bytes(run: Callable[[], object]) -> int:
    """Return the most that torch's CPU allocator held during `run`, beyond what it held before.

    Sums the allocator's own events, so memory outside of it (numpy's, a library's) does not count.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
    return peak_of([size for _, size in memory_events(profile)])


def memory_events(profile: torch.profiler.profile) -> list[tuple[int, int]]:
    """Return (time in ns, bytes allocated or, negative, given back) in the order of time."""
    events: list[Any] = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = ((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return sorted(changes, key=lambda change: change[0])


def peak_of(changes: list[int]) -> int:
    held = peak = 0
    for change in changes:
        held += change
        peak = max(peak, held)
    return peak
