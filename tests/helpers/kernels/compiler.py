"""torch.compile in a test, without what its first use changes for the tests after it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from membench.core.libraries.torch_contexts import without_value_checks


@contextmanager
def with_compiler() -> Iterator[None]:
    """Use torch's compiler, whose first use disables the checks of distributions, and enable them again afterwards."""
    with without_value_checks():
        torch.compile(lambda: None)
        yield
