"""Search for the largest number that satisfies a condition, such as the largest batch or the deepest network."""

from collections.abc import Callable


def largest(
    fits: Callable[[int], bool], *, step: int = 1, limit: int = 1 << 20, guess: int | None = None
) -> int | None:
    """Return the largest multiple of `step` for which `fits` holds.

    Goes up or down from the guess, or from `step`, in strides that double until the answer changes, then bisects. A right
    guess takes two calls.

    Args:
        fits: holds up to some number and fails beyond it.
        step: resolution of the search.
        limit: upper end of the search; at least `step`.
        guess: a predicted result.

    Returns:
        None if not even `step` fits; `limit`, rounded down to a multiple of `step`, if everything does.
    """
    last = limit // step
    first = min(max(1, (guess or step) // step), last)
    good, bad = (first, last + 1) if fits(first * step) else (0, first)
    upwards = good == first
    stride = 1
    while True:
        candidate = min(good + stride, last) if upwards else bad - stride
        if not good < candidate < bad:
            break
        if fits(candidate * step):
            good = candidate
        else:
            bad = candidate
        if upwards != (good == candidate):
            break
        stride *= 2
    good = _bisect(fits, good, bad, step)
    return step * good if good else None


def _bisect(fits: Callable[[int], bool], good: int, bad: int, step: int) -> int:
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle * step):
            good = middle
        else:
            bad = middle
    return good


def by_line(first: tuple[int, float], second: tuple[int, float], capacity: float) -> int:
    """Return the number at which a line through two points reaches the capacity."""
    (x, y), (other_x, other_y) = first, second
    slope = (other_y - y) / (other_x - x)
    return int(x + (capacity - y) / slope) if slope > 0 else other_x
