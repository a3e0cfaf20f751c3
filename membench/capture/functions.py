"""Functions that are traced in another form than the one in which plain PyTorch would run them on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class AsOperators(TorchFunctionMode):
    """Trace functions as operators that a schedule can run.

    Dropout is ``native_dropout``, with a one-byte mask, as it runs on a GPU. On the CPU it draws the same numbers and gives
    the same bits as ``torch.nn.functional.dropout``. An LSTM on the CPU is not oneDNN's, which keeps for its backward what it
    shows to autograd alone; its sums round otherwise.
    """

    _DROPOUTS = (torch.dropout, torch.nn.functional.dropout)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._DROPOUTS:
            inplace, output = _dropout(*args, **kwargs)
            return args[0].copy_(output) if inplace else output
        if func is torch.lstm:
            with _without_onednn():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Like ``torch.backends.mkldnn.flags(enabled=False)``, which also sets TF32 and warns where there is none."""
    was_enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


def _dropout(
    input: Tensor,  # noqa: A002 (the names are torch's)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> tuple[bool, Tensor]:
    if not (training if train is None else train) or p == 0:
        return False, input
    return inplace, torch.native_dropout(input, p, True)[0]
