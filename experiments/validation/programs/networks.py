"""Networks of published measurements, as they were built there."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from membench.core.errors import MembenchError

_SAME_PARAMETERS = 0.01
"""Relative difference in the number of weights up to which a network counts as the published one."""


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    from timm.layers.config import set_fused_attn, use_fused_attn

    is_fused = use_fused_attn()
    set_fused_attn(False)
    try:
        yield
    finally:
        set_fused_attn(is_fused)


def timm_network(name: str, image_size: int, parameters_m: float, *, fused_attention: bool = False) -> nn.Module:
    """Return the network that timm has under a name, without its pretrained weights.

    Args:
        name: today's name, or that in an earlier release, which timm maps to today's.
        image_size: pixels along the images' sides, for networks with a fixed one.
        parameters_m: million weights of the published network.
        fused_attention: torch's fused attention; without it, as with PyTorch 1.12, attention is a product, a
            softmax and a product.

    Raises:
        MembenchError: timm has no network of that name any more, or another one.
    """
    import warnings

    import timm

    attention = nullcontext() if fused_attention else _without_fused_attention()
    with attention, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a name is deprecated, and that a network is not pretrained
        try:
            network: nn.Module = timm.create_model(name)
        except RuntimeError as error:
            raise MembenchError(f"today's timm has no network {name!r}") from error
        fixed = getattr(getattr(network, "patch_embed", None), "img_size", None)
        if fixed is not None and tuple(fixed) != (image_size, image_size):
            network = timm.create_model(name, img_size=image_size)
    found_m = sum(weight.numel() for weight in network.parameters()) / 1e6
    if abs(found_m - parameters_m) > max(_SAME_PARAMETERS * parameters_m, 0.006):  # published with two decimals
        raise MembenchError(
            f"today's {name!r} of timm has {found_m:.2f} million weights, the published one {parameters_m}"
        )
    return network


class TokenLoss(nn.Module):
    """Cross entropy of every token's logits, outside the network, as NeuSight's measurements have it."""

    def forward(self, output: Any, targets: Tensor) -> Tensor:
        """Return the mean over all tokens.

        Args:
            output: what a network of transformers returns, with logits (batch, tokens, vocabulary).
            targets: (batch, tokens).
        """
        return nn.functional.cross_entropy(output.logits.view(-1, output.logits.shape[-1]), targets.view(-1))


class MeanLoss(nn.Module):
    """The mean of the output in place of a loss, as TorchDynamo's benchmarks have it."""

    def forward(self, output: Tensor, _: Tensor) -> Tensor:
        """Return the mean over all elements of the output, of any shape."""
        return output.sum() / output.numel()


def torchvision_network(name: str) -> nn.Module:
    """Return the network that torchvision has under a name, with random weights on the CPU.

    RegNets compute their widths with tensors, whose values the meta device lacks.
    """
    import torchvision

    with torch.device("cpu"):
        network: nn.Module = torchvision.models.get_model(name, weights=None)
    return network
