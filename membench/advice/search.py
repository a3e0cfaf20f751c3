"""The largest batch of a method: guessed from what two batches need, then planned."""

from collections.abc import Callable

from membench.sweep.limits import by_line

DIGITS = 6
"""Binary digits of a batch size before its zeros: it is found to within a part in 32."""
TRIALS = 8
"""Batches that are planned, from the guess on down."""
MOST = 1 << 16
"""The largest batch that is looked for; a method that works in micro-batches hardly has a limit."""


def largest_batch(
    needed_bytes: Callable[[int], int], share: Callable[[int], float], room_bytes: int, batch_size: int
) -> int | None:
    """Return a batch that fits, the largest found; None if none does.

    Args:
        needed_bytes: the least memory that a batch needs, close to linear in its size.
        share: of what a batch needs, when planned, the part that the device has; at least 1: it fits.
        batch_size: a size with a graph at hand; twice as much is the other end of the line.
    """
    first, second = ((size, needed_bytes(size)) for size in (batch_size, 2 * batch_size))
    candidate = rounded(max(1, min(by_line(first, second, room_bytes), MOST)))
    for _ in range(TRIALS):
        found = share(candidate)
        if found >= 1:
            return candidate
        if candidate == 1:
            break
        candidate = rounded(max(1, min(candidate - 1, int(candidate * found))))
    return None


def rounded(size: int) -> int:
    """Return the largest size up to this one with at most `DIGITS` binary digits before its zeros."""
    zeros = max(0, size.bit_length() - DIGITS)
    return size >> zeros << zeros
