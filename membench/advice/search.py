"""The largest batch of a method: guessed from what two batches need, then planned."""

from collections.abc import Callable

from membench.sweep.limits import by_line

DIGITS = 6
"""Binary digits of a batch size before its zeros: it is found to within a part in 32."""
TRIALS = 6
"""The most batches that are planned."""
MOST = 1 << 16
"""The largest batch that is looked for; a method that works in micro-batches hardly has a limit."""


def largest_batch(
    needed_bytes: Callable[[int], int], share: Callable[[int], float], room_bytes: int, batch_size: int
) -> int:
    """Return a batch that fits, the largest found.

    Args:
        needed_bytes: the least memory that a batch needs, close to linear in its size.
        share: of what a batch needs, when planned, the part that the device has; at least 1: it fits.
        batch_size: one that fits, with a graph at hand; twice as much is the other end of the line.
    """
    first, second = ((size, needed_bytes(size)) for size in (batch_size, 2 * batch_size))
    candidate, good, bad = min(by_line(first, second, room_bytes), MOST), batch_size, None
    for _ in range(TRIALS):
        candidate = rounded(candidate)
        if candidate <= good:
            break
        found = share(candidate)
        if found >= 1:
            good = candidate
        else:
            bad = candidate
        if bad is None:
            break  # the line ends here
        middle = (good + bad) // 2
        candidate = middle if found >= 1 else max(middle, int(candidate * found))
    return good


def rounded(size: int) -> int:
    """Return the largest size up to this one with at most `DIGITS` binary digits before its zeros."""
    zeros = max(0, size.bit_length() - DIGITS)
    return size >> zeros << zeros
