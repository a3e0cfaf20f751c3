"""Compiled loops, which encode and decode on the CPU in one pass and without torch's allocator.

Only modules of such loops import this one, and they are imported when a tensor on the CPU is encoded or decoded.
"""

import inspect
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from numba import njit
from numba.core import config

from membench.core.files import cache_directory

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile a function at its first call with arrays of some types; the result is cached on disk.

    Code and constants of other modules of the same folder become a part of a loop, while numba compares only the
    loop's own file with what is cached. So each state of the folder has a cache of its own, unless ``NUMBA_CACHE_DIR``
    says where to cache.

    It releases Python's global lock while it runs, so that a codec's thread runs in parallel with others. Integers of
    mixed signs become floating-point numbers in numba, as in numpy; unsigned indices save a test for negative ones.
    """
    compile_: Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]] = njit(
        nogil=True, cache=True, error_model="numpy"
    )
    settings: Any = config  # typed without its variables
    given = settings.CACHE_DIR
    folder = _sources_hash(Path(inspect.getfile(function)).parent)
    settings.CACHE_DIR = given or str(cache_directory() / "loops" / folder)
    try:
        return compile_(function)
    finally:
        settings.CACHE_DIR = given


def part(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function a part of compiled ones, which alone call it: it has no form for Python and no cache.

    The former unpacks each array of each argument and takes a second to compile; the latter is in its callers' caches.
    """
    untyped: Any = njit  # without types of these two options
    made: Callable[Parameters, Result] = untyped(
        nogil=True, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return made


@cache
def _sources_hash(folder: Path) -> str:
    """Return a hash of a folder's modules."""
    return sha256(b"\0".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()[:16]
