"""Search for the largest number that satisfies a condition, such as the largest batch or the deepest network."""

from collections.abc import Callable


def largest(
    fits: Callable[[int], bool], *, step: int = 1, limit: int = 1 << 20, guess: int | None = None
) -> int | None:
    """Return the largest multiple of `step` for which `fits` holds.

    Goes up or down from the guess, or from `step`, in strides that double until the answer changes, then bisects. A
    right guess takes two calls.

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
    upwards, stride = good == first, 1
    while bad - good > 1:
        far = min(good + stride, last) if upwards else bad - stride
        candidate = far if stride and far > 0 else (good + bad) // 2
        if fits(candidate * step):
            good = candidate
        else:
            bad = candidate
        stride = 2 * stride if upwards == (good == candidate) else 0  # 0: bisects from here on
    return step * good if good else None


def by_line(first: tuple[int, float], second: tuple[int, float], capacity: float) -> int:
    """Return the number at which a line through two points reaches the capacity."""
    (x, y), (other_x, other_y) = first, second
    slope = (other_y - y) / (other_x - x)
    return int(x + (capacity - y) / slope) if slope > 0 else other_x
