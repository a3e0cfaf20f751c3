"""Measurements on the CPU that are short, because what tests check does not depend on what is measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from membench.core.units import KIB, MIB
from membench.profiling import link, operators


@contextmanager
def short_measurements() -> Iterator[None]:
    """Time operators by one run each, as the caches are, and copies of a megabyte."""
    with (
        patch.multiple(operators, _CPU_REPETITIONS=(1, 1), _CACHES_BYTES=KIB),
        patch.multiple(link, _CPU_BYTES=MIB, _MATRIX_SIZE=128),
    ):
        yield
