"""Compiled loops, which encode and decode on the CPU in one pass and without torch's allocator.

Only modules of such loops import this one, and they are imported when a tensor on the CPU is encoded or decoded.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile a function at its first call with arrays of some types; the result is cached on disk.

    It releases Python's global lock while it runs, so that a codec's thread runs in parallel with others. Integers of
    mixed signs become floating-point numbers in numba, as in numpy; unsigned indices save a test for negative ones.
    """
    compile_: Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]] = numba.njit(
        nogil=True, cache=True, error_model="numpy"
    )
    return compile_(function)
