"""Largest batch, deepest network: the largest number that something still holds for."""

from collections.abc import Callable


def largest(fits: Callable[[int], bool], *, step: int = 1, limit: int = 1 << 20) -> int | None:
    """Return the largest multiple of `step` for which `fits` holds: double until it fails, then bisect.

    Args:
        fits: holds up to some number and fails beyond it.
        step: how finely to look.
        limit: where to stop doubling; at least `step`.

    Returns:
        None if not even `step` fits; `limit`, rounded down to a multiple of `step`, if everything does.
    """
    if not fits(step):
        return None
    last = limit // step
    good = 1
    while good < last:
        candidate = min(2 * good, last)
        if not fits(candidate * step):
            return step * _bisect(fits, good, candidate, step)
        good = candidate
    return step * good


def _bisect(fits: Callable[[int], bool], good: int, bad: int, step: int) -> int:
    while bad - good > 1:
        middle = (good + bad) // 2
        if fits(middle * step):
            good = middle
        else:
            bad = middle
    return good
