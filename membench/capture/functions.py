"""Functions that are traced in a different form from the one in which plain PyTorch runs them."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from membench.core.torch_internals import without_fused_networks


class AsOperators(TorchFunctionMode):
    """Trace functions as operators that a schedule can run.

    Dropout is ``native_dropout``, with a one-byte mask, as it runs on a GPU, unless it is in place. On the CPU it draws the same
    numbers and gives the same bits as ``torch.nn.functional.dropout``. A recurrent network runs neither in oneDNN, which hides from the trace
    what it keeps for its backward pass, nor in cuDNN, which needs all weights in one allocation; its sums are rounded
    differently.
    """

    _DROPOUTS = (torch.dropout, torch.nn.functional.dropout)
    _RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._DROPOUTS:
            return _dropout(*args, **kwargs)
        if func in self._RECURRENT:
            with without_fused_networks():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(
    input: Tensor,  # noqa: A002 (the names are torch's)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> Tensor:
    if inplace:
        return torch.dropout_(input, p, training)
    if not (training if train is None else train) or p == 0:
        return input
    if p == 1:  # nothing is drawn
        return torch.dropout(input, p, True)
    return torch.native_dropout(input, p, True)[0]
