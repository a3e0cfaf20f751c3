"""Programs in tests: without the compiler, or compiled into a cache of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from membench.backends.calls import compiled_functions, fused_calls


@contextmanager
def without_compiler(folder: Path) -> Iterator[None]:
    """Let Inductor fail, so that programs run call by call, with the bits of eager PyTorch.

    Args:
        folder: folder of the cache, empty.
    """

    def fail(*_: object) -> None:
        raise RuntimeError("there is no compiler")

    with patch.object(compiled_functions, "written_source", fail), cached_in(folder):
        yield


@contextmanager
def cached_in(folder: Path) -> Iterator[None]:
    """Let programs be compiled again, or taken from a folder."""
    fused_calls.compiled_functions.cache_clear()
    with patch.object(compiled_functions, "cache_directory", lambda: folder):
        yield
    fused_calls.compiled_functions.cache_clear()
