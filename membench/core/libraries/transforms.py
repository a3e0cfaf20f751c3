"""Transforms of torch, which change a function's operators: a step with its own schedule is refused there.

A step runs the operators that were captured, on the memory of tensors. A transform would need to see each of them
instead.
"""

from collections.abc import Iterable
from typing import NoReturn

from torch import Tensor
from torch.autograd import forward_ad

from membench.core.errors import MembenchError
from membench.core.libraries.torch_contexts import active_transform, has_forward_derivatives


def check_no_transform(what: str, instead: str, tensors: Iterable[Tensor]) -> None:
    """Refuse a call within a transform.

    Args:
        what: is called, for the sentence.
        instead: what is called in its place.
        tensors: that the call reads; looked at only where forward-mode derivatives are taken.

    Raises:
        MembenchError: names the transform.
    """
    if name := active_transform():
        _refuse(what, f"within {name}", instead)
    if has_forward_derivatives() and any(forward_ad.unpack_dual(each).tangent is not None for each in tensors):
        _refuse(what, "on tensors with tangents (torch.autograd.forward_ad)", instead)


def _refuse(what: str, where: str, instead: str) -> NoReturn:
    raise MembenchError(f"{what} does not run {where}, which would not see its operators; {instead}")
