"""Windows: the input rows that an operator reads for some rows of its output."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from membench.core.graph.call import Call, Value, resolve_operator

_DIMENSIONS = 4
"""Images, channels, rows, columns; the normalisation of neighbouring channels has one more in front of the rows."""


@dataclass(frozen=True, slots=True)
class Window:
    """An operator's reach over rows. Rows beyond the edge read as `fill`.

    Attributes:
        operands: positions of the arguments that are read by rows; all others are read as a whole.
        padding_argument: position of the argument with the padding of rows and columns; None: it has none.
    """

    size: int = 1
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    fill: float = 0.0
    padding_argument: int | None = None
    operands: tuple[int, ...] = (0,)

    def reads(self, start: int, end: int) -> tuple[int, int]:
        """Return the rows, from the first to behind the last, that output rows `start` to `end` read.

        They may lie beyond the edges.
        """
        first = start * self.stride - self.padding
        last = (end - 1) * self.stride - self.padding + (self.size - 1) * self.dilation
        return first, last + 1


def window_of(call: Call) -> Window | None:
    """Return an operator's window over rows, or None where its rows cannot be computed separately."""
    result = call.outputs[0] if call.outputs[0] is not None else call.args[0]
    if not isinstance(result, Value) or len(result.shape) < _DIMENSIONS:
        return None
    name = call.operator.split(".")[1]
    if name in _WINDOWS:
        return _WINDOWS[name](call.args)
    is_pointwise = torch.Tag.pointwise in resolve_operator(call).tags
    return _pointwise(call, rows_of(result)) if is_pointwise else None


def rows_of(value: Value) -> int:
    """Return the number of rows of a feature map."""
    return value.shape[-2]


def _pointwise(call: Call, rows: int) -> Window | None:
    """Return a window where every operand has the result's rows, or the same numbers for each row."""
    operands = []
    for position, argument in enumerate(call.args):
        if isinstance(argument, Value) and len(argument.shape) >= 2 and rows_of(argument) != 1:
            if len(argument.shape) < _DIMENSIONS or rows_of(argument) != rows:
                return None
            operands.append(position)
    return Window(operands=tuple(operands))


def _convolution(args: Sequence[Any]) -> Window | None:
    weight, stride, padding, dilation, transposed = args[1], *args[3:7]
    if transposed or len(weight.shape) != _DIMENSIONS:
        return None
    if padding[0] > (weight.shape[2] - 1) * dilation[0]:
        return None  # some rows would read nothing but padding
    return Window(weight.shape[2], stride[0], padding[0], dilation[0], padding_argument=4)


def _max_pool(args: Sequence[Any]) -> Window | None:
    kernel, stride, padding, dilation, *_ = (*args[1:], *_MAX_POOL_DEFAULTS[len(args) - 1 :])
    stride = stride or kernel
    return Window(kernel[0], stride[0], padding[0], dilation[0], fill=-math.inf, padding_argument=3)


_MAX_POOL_DEFAULTS: tuple[Any, ...] = ((), (), (0, 0), (1, 1), False)


def _average_pool(args: Sequence[Any]) -> Window | None:
    """Return None for padding: rows beyond the edge would count in the divisor."""
    kernel, stride, padding, ceil_mode = (*args[1:5], *((), (0, 0), False)[len(args) - 2 :])[:4]
    if any(padding) or ceil_mode:
        return None
    return Window(kernel[0], (stride or kernel)[0])


def _average_pool_3d(args: Sequence[Any]) -> Window | None:
    """Return a window for local response normalisation, which averages over channels in the place of depth."""
    kernel, stride, padding, ceil_mode = (*args[1:5], *((), (0, 0, 0), False)[len(args) - 2 :])[:4]
    is_row_by_row = kernel[1] == 1 and (stride or kernel)[1] == 1 and padding[1] == 0 and not ceil_mode
    return Window() if is_row_by_row else None


def _pad(args: Sequence[Any]) -> Window | None:
    before_and_after = args[1][2:4]
    return None if any(before_and_after) else Window()


def _concatenate(args: Sequence[Any]) -> Window | None:
    operands, dimension = args[0], args[1] if len(args) > 1 else 0
    dimensions = len(operands[0].shape)
    return None if dimension % dimensions == dimensions - 2 else Window()


def _batch_norm(args: Sequence[Any]) -> Window | None:
    """Return a window for batch norm with running statistics; in training it needs all rows."""
    return None if args[5] else Window()


_WINDOWS = {
    "convolution": _convolution,
    "max_pool2d_with_indices": _max_pool,
    "avg_pool2d": _average_pool,
    "avg_pool3d": _average_pool_3d,
    "constant_pad_nd": _pad,
    "cat": _concatenate,
    "native_batch_norm": _batch_norm,
    "clone": lambda args: Window(),
}
