"""Padded batches that `nn.TransformerEncoder` turns into nested tensors, whose shapes depend on the mask's values."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from membench.core.errors import UnsupportedModel

_FORWARD = nn.TransformerEncoder.forward
_SIGNATURE = signature(_FORWARD)


def check_keeps_padding(name: str, layer: nn.TransformerEncoder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call for which plain PyTorch leaves padding out.

    Its output is zero there, and a capture, which computes all positions, would return other numbers. The conditions
    are those of `nn.TransformerEncoder.forward`, without the mask's values: padding that is not at the end is refused
    as well.

    Args:
        name: the layer's name.
        args, kwargs: arguments of the layer's call.

    Raises:
        UnsupportedModel: the layer is an encoder in evaluation, with a mask of padding, and autograd does not need it.
    """
    if type(layer).forward is not _FORWARD:
        return
    call = _SIGNATURE.bind(layer, *args, **kwargs).arguments
    source, padding, mask = (call.get(key) for key in ("src", "src_key_padding_mask", "mask"))
    first = layer.layers[0]
    is_nested = (
        torch.backends.mha.get_fastpath_enabled()
        and layer.use_nested_tensor
        and not first.training
        and isinstance(source, Tensor)
        and source.dim() == 3
        and padding is not None
        and mask is None
        and not torch.is_autocast_enabled()
    )
    needs_gradient = torch.is_grad_enabled() and any(each.requires_grad for each in (source, *first.parameters()))
    if is_nested and not needs_gradient:
        raise UnsupportedModel(
            name,
            "in evaluation torch leaves padding out (nested tensors), and its output is zero there",
            "build it with enable_nested_tensor=False, or call torch.backends.mha.set_fastpath_enabled(False)",
        )
