"""Functions that are traced in another form than the one in which plain PyTorch would run them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode


class AsOperators(TorchFunctionMode):
    """Trace functions as operators that a schedule can run.

    Dropout is ``native_dropout``, with a one-byte mask, as it runs on a GPU. On the CPU it draws the same numbers and gives
    the same bits as ``torch.nn.functional.dropout``. A recurrent network is neither oneDNN's, which keeps for its backward
    what it shows to autograd alone, nor cuDNN's, which wants all weights in one piece of memory; its sums round otherwise.
    """

    _DROPOUTS = (torch.dropout, torch.nn.functional.dropout)
    _RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._DROPOUTS:
            inplace, output = _dropout(*args, **kwargs)
            return args[0].copy_(output) if inplace else output
        if func in self._RECURRENT:
            with _without_fused_networks():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


@contextmanager
def without_value_checks() -> Iterator[None]:
    """Let torch's distributions not look whether their arguments are valid: a trace has no values."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _without_fused_networks() -> Iterator[None]:
    """Switch oneDNN and cuDNN off, but not as `torch.backends` does, which sets TF32 as well."""
    has_onednn, has_cudnn = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(has_onednn)
        torch._C._set_cudnn_enabled(has_cudnn)


def _dropout(
    input: Tensor,  # noqa: A002 (the names are torch's)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> tuple[bool, Tensor]:
    if not (training if train is None else train) or p == 0:
        return False, input
    if p == 1:  # nothing is drawn
        return inplace, torch.dropout(input, p, True)
    return inplace, torch.native_dropout(input, p, True)[0]
