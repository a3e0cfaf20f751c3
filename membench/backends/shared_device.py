"""What kernels of several streams take of a simulated device at the same time."""

_NONE_LEFT = 1e-9
"""Of the device: less is rounding."""


class SharedDevice:
    """The multiprocessors of a device, of which each kernel takes up to a share of its own.

    Kernels are launched in the order of issue, as blocks of a later kernel are placed where those of earlier ones leave
    room: none starts before the one issued before it, and none slows an earlier one down. A kernel that would take more
    than is left runs slower meanwhile.
    """

    def __init__(self) -> None:
        self._from_s = 0.0  # start of the last kernel
        self._used: list[tuple[float, float]] = []  # (until, share in use), in order; after the last: nothing

    def run(self, ready_s: float, busy_s: float, share: float) -> tuple[float, float]:
        """Return when a kernel starts and when it ends.

        Args:
            ready_s: the earliest start.
            busy_s: seconds that it takes alone.
            share: part of the device that it keeps busy alone, above 0 and at most 1.
        """
        now_s = max(ready_s, self._from_s)
        if not self._used or self._used[-1][0] <= now_s:  # most kernels: nothing else runs
            self._from_s, self._used = now_s, [(now_s + busy_s, share)]
            return now_s, now_s + busy_s
        start_s: float | None = None
        left_s, taken = busy_s, []
        for until_s, used in self._used:
            rate = min(share, 1.0 - used)
            if until_s <= now_s:
                continue
            if rate > _NONE_LEFT:
                start_s = now_s if start_s is None else start_s
                end_s = now_s + left_s * share / rate
                taken.append((min(end_s, until_s), rate))
                if end_s <= until_s:
                    break
                left_s -= (until_s - now_s) * rate / share
            now_s = until_s
        else:
            start_s = now_s if start_s is None else start_s
            end_s = now_s + left_s
            taken.append((end_s, share))
        self._take(start_s, taken)
        return start_s, end_s

    def _take(self, start_s: float, taken: list[tuple[float, float]]) -> None:
        """Add a kernel's pieces, each until a time, to what is in use, and forget what was before it."""
        ends_s = sorted({until_s for until_s, _ in (*self._used, *taken) if until_s > start_s})
        self._used = [(end_s, _at(self._used, end_s) + _at(taken, end_s)) for end_s in ends_s]
        self._from_s = start_s


def _at(pieces: list[tuple[float, float]], end_s: float) -> float:
    """Return the share in the piece that ends at a time or later; 0 after the last."""
    return next((share for until_s, share in pieces if until_s >= end_s), 0.0)
