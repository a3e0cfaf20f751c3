"""Convolutions whose data gradient overwrites their input before their weight gradient has read it (Layrub, 4.3).

    data gradient:    dx = w * dy          written into the memory of x, as Layrub's intra-layer strategy has it
    weight gradient:  dw = x * dy          on another stream; without a barrier it reads dx where x has been

Layrub reports what this race leaves of the accuracy. Its outcome depends on the card, the kernels and their times; here
it is the same in every step: the weight gradient reads the data gradients of the first images of the batch and the
inputs of the others. membench's own schedules have no such race, for they are refused; so the network has it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

from membench.core.checks import FRACTION, check


def racing(network: nn.Module, overwritten: float = 1.0) -> nn.Module:
    """Give every convolution of a network the race, and return the network.

    The first convolution has none, because images have no gradient.

    Args:
        network: changed in place; its convolutions are without dilation.
        overwritten: the fraction of the batch whose data gradients are written before the weight gradient reads.

    Raises:
        MembenchError: `overwritten` is not a fraction above 0 and at most 1.
    """
    check(FRACTION, overwritten=overwritten)
    for layer in network.modules():
        if type(layer) is nn.Conv2d:
            layer.__class__ = _RacingConv2d
            layer.overwritten = overwritten  # type: ignore[assignment]
    return network


class _RacingConv2d(nn.Conv2d):
    overwritten: float

    def forward(self, data: Tensor) -> Tensor:
        options = self.stride, self.padding, self.dilation, self.groups
        output: Tensor = _Racing.apply(data, self.weight, self.bias, options, self.overwritten)
        return output


class _Racing(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, data: Tensor, weight: Tensor, bias: Tensor | None, options: tuple[Any, ...], overwritten: float
    ) -> Tensor:
        ctx.save_for_backward(data, weight)
        ctx.options, ctx.overwritten = options, overwritten
        return conv2d(data, weight, bias, *options)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        data, weight = ctx.saved_tensors
        of_data = None
        if ctx.needs_input_grad[0]:
            of_data = conv2d_input(data.shape, weight, gradient, *ctx.options)
            count = round(ctx.overwritten * len(data))
            data = torch.cat([of_data[:count], data[count:]])
        of_weight = conv2d_weight(data, weight.shape, gradient, *ctx.options)
        of_bias = gradient.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        return of_data, of_weight, of_bias, None, None
