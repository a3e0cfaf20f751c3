"""Shares of the output channels of convolutions and linear layers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from membench.core.graph.call import Call, Value

WeightOf = Callable[[Value, Value], Value]
"""Maps a weight and a share of it to the value that holds the share."""

_CONVOLUTION = "aten.convolution.default"
_WEIGHT_AND_BIAS = {_CONVOLUTION: (1, 2), "aten.addmm.default": (2, 0), "aten.mm.default": (1, None)}
"""Positions of the arguments."""


@dataclass(frozen=True, slots=True)
class Share:
    """Output channels of a convolution or a linear layer, from `start` up to but not including `end`.

    Attributes:
        groups: first and behind the last of the convolution's groups that these channels belong to; None: one group.
        is_all: all channels; nothing is narrowed.
    """

    start: int
    end: int
    groups: tuple[int, int] | None = None
    is_all: bool = False

    @property
    def label(self) -> str:
        return "" if self.is_all else f"[channels {self.start}:{self.end}]"

    def narrow(self, call: Call, weight_of: WeightOf) -> Call:
        """Return the call for these channels only, with their weights and the input channels that their groups read."""
        if self.is_all:
            return call
        [result, *others] = call.outputs
        assert result is not None
        shape = (result.shape[0], self.end - self.start, *result.shape[2:])
        args = list(call.args)
        weight_position, bias_position = _WEIGHT_AND_BIAS[call.operator]
        axis = 0 if _is_convolution(call) else 1
        weight = args[weight_position]
        args[weight_position] = weight_of(weight, _narrow(weight, axis, self.start, self.end))
        if bias_position is not None and args[bias_position] is not None:
            bias = args[bias_position]
            args[bias_position] = _narrow(bias, len(bias.shape) - 1, self.start, self.end)
        if self.groups is not None:
            first, last = self.groups
            args[8] = last - first
            channels = weight.shape[1]
            args[0] = _narrow(args[0], 1, first * channels, last * channels)
        return replace(call, args=tuple(args), outputs=(replace(result, shape=shape), *others))


def shares(call: Call, parts: int = 1, *, most: bool = False) -> list[Share]:
    """Return even shares of a call's output channels; a single one where the call cannot be split.

    A share of a convolution in groups lies within one group, or is made of whole groups.

    Args:
        most: as many shares as there are channels, in place of `parts`.
    """
    result = call.outputs[0]
    everything = Share(0, result.shape[1] if result is not None and len(result.shape) > 1 else 0, is_all=True)
    if not (most or parts > 1) or not _allows_channels(call):
        return [everything]
    channels = everything.end
    groups = call.args[8] if _is_convolution(call) else 1
    parts = channels if most else min(parts, channels)
    if groups == 1:
        return [Share(start, end) for start, end in even(0, channels, parts)]
    size = channels // groups
    if parts <= groups:
        return [Share(a * size, b * size, (a, b)) for a, b in even(0, groups, parts)]
    return [
        Share(start, end, (group, group + 1))
        for group in range(groups)
        for start, end in even(group * size, (group + 1) * size, min(size, ceil(parts / groups)))
    ]


def even(start: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Return begin and end of even shares of a range."""
    bounds = [start + number * (end - start) // parts for number in range(parts + 1)]
    return list(pairwise(bounds))


def _is_convolution(call: Call) -> bool:
    return call.operator == _CONVOLUTION


def _allows_channels(call: Call) -> bool:
    """Return whether the weights of a share of the output channels are contiguous."""
    if call.operator not in _WEIGHT_AND_BIAS:
        return False
    weight = call.args[_WEIGHT_AND_BIAS[call.operator][0]]
    if not _is_convolution(call):
        return weight.stride == (1, weight.shape[0])
    elements = weight.extent_bytes // weight.dtype.itemsize
    transposed = call.args[6]
    return not transposed and len(weight.shape) == 4 and weight.stride[0] * weight.shape[0] == elements


def _narrow(value: Value, axis: int, start: int, end: int) -> Value:
    shape = (*value.shape[:axis], end - start, *value.shape[axis + 1 :])
    return replace(value, shape=shape, offset=value.offset + start * value.stride[axis])
