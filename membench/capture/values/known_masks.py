"""Masks that transformers builds from values: in a trace as in plain PyTorch, where the values are known.

Its models leave a mask out where no token is masked, so that attention runs in its fastest kernel. They read values for
that, except those of fake tensors, for which they always build the mask.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor

from membench.core.libraries.one_thread import replaced

_MODULE, _NAME = "transformers.utils.import_utils", "is_fake_tensor"


@contextmanager
def known_masks(is_known: Callable[[Tensor], bool]) -> Iterator[None]:
    """Let transformers, if it is imported, read the values of fake tensors that have the same values in each step.

    Args:
        is_known: whether a fake tensor's values are known.
    """
    utilities = sys.modules.get(_MODULE)
    is_fake = getattr(utilities, _NAME, None)
    if is_fake is None:
        yield
        return
    with replaced(utilities, _NAME, lambda value: is_fake(value) and not is_known(value)):
        yield
