"""Compiled loops: how the CPU encodes and decodes, in one pass and without memory of torch's.

Only modules of such loops import this one, and they are imported when a tensor on the CPU is encoded or decoded.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile a function when it is first called with arrays of some types; the next process finds the result on disk.

    It holds no lock of Python's while it runs, so that a codec's thread runs beside the others. Integers of mixed signs
    become floating-point numbers in numba, as in numpy; indices that are not signed save a test for negative ones.
    """
    compile_: Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]] = numba.njit(
        nogil=True, cache=True, error_model="numpy"
    )
    return compile_(function)
