"""Python's garbage collector, which gives memory back at a time of its own."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 10_000


def collect_less_often() -> None:
    """Collect once in 10,000 new objects in place of 700: what a command imports lives on."""
    gc.set_threshold(_NEW_OBJECTS)


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage in a block, so that tensors die only where the last variable that refers to them does."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
