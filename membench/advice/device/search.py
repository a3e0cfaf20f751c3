"""The largest batch of a method: from one batch to another by the share of the device's memory that each needs."""

from collections.abc import Callable
from math import sqrt

DIGITS = 5
"""Binary digits of a batch size before its zeros: it is found to within a part in 16."""
TRIALS = 5
"""The most batches that are planned."""
NEAR = 0.95
"""Part of a guess from which on the guess is not tried."""
MOST = 1 << 16
"""The largest batch that is looked for."""


def largest_batch(load: Callable[[int], float], size: int, found: float, *, fixed: float = 0.0) -> int | None:
    """Return a batch that fits, the largest found; None: none was found.

    Args:
        load: the part of the device's memory that a batch needs. Above 1 it does not fit; exactly 1 is of a plan that
            takes what there is, from which the largest batch cannot be estimated.
        size, found: a batch, and its load.
        fixed: the part that is needed at any batch.
    """
    good, bad = (size, MOST + 1) if found <= 1 else (0, size)
    for _ in range(TRIALS):
        guess = next_guess(size, found, fixed)
        if found == 1 or size == good >= rounded(int(guess)):  # a method that takes a budget may need less than here
            guess = sqrt(good * min(bad, 4 * good))
        candidate = _between(good, bad, guess)
        if candidate is None:
            break
        size, found = candidate, load(candidate)
        good, bad = (size, bad) if found <= 1 else (good, size)
    return good or None


def next_guess(size: int, load: float, fixed: float) -> float:
    """Return the batch that needs all of the memory, given what a batch of one needs and what every batch needs."""
    return size * (1 - fixed) / max(load - fixed, 1 / MOST)


def _between(good: int, bad: int, guess: float) -> int | None:
    """Return a rounded size above one and below the other, the closest to a guess; None: there is none."""
    least, most = rounded(good) + _step(good), rounded(bad - 1)
    return None if least > most else min(max(least, rounded(int(guess))), most)


def rounded(size: int) -> int:
    """Return the largest size up to this one with at most `DIGITS` binary digits before its zeros."""
    return size // _step(size) * _step(size)


def _step(size: int) -> int:
    """Return the distance of rounded sizes."""
    return 1 << max(0, size.bit_length() - DIGITS)
