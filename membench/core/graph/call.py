"""Call: a task's ATen operator and its arguments; values describe where in the blocks its tensors lie."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch

from membench.core.libraries.torch_internals import OpOverload


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in a block: shape, strides and offset in elements.

    Attributes:
        conjugated, negated: its elements are the conjugates, or the negatives, of the stored ones (torch's lazy views).
    """

    block: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conjugated: bool = False
    negated: bool = False

    @property
    def extent_bytes(self) -> int:
        """Bytes of its elements; elements that a stride of zero repeats count once."""
        counted = [size if stride else 1 for size, stride in zip(self.shape, self.stride, strict=True)]
        return prod(counted) * self.dtype.itemsize

    @property
    def moved_bytes(self) -> int:
        """Bytes that reading its elements once moves: `extent_bytes`, with what overlapping windows share once."""
        reach = 1 + sum([(size - 1) * step for size, step in zip(self.shape, self.stride, strict=True)])
        return min(self.extent_bytes, max(0, reach) * self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class ShapeOf:
    """An argument whose shape and dtype alone an operator reads; its block may have been freed."""

    value: Value


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor as an operator returns it: shape, strides and offset in elements, and the bytes of its storage."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    size_bytes: int


Outputs = tuple[Output | None, ...]
"""What a call returns; None for an output that is not a tensor, or that was written in place."""


@dataclass(frozen=True, slots=True)
class Call:
    """How a task runs: an ATen operator by name, its arguments, and where its outputs lie.

    Arguments hold `Value` and `ShapeOf` in place of tensors, inside lists too. An output is None if the operator does
    not return a tensor there, or returns one that it wrote in place.

    Attributes:
        like: the call that this one repeats on other blocks, so that it takes as long; None: it was made by itself.
        moved: the call whose values are not yet those of other blocks, and these blocks; None: they are. See
            `on_blocks`.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[Value | None, ...]
    like: "Call | None" = field(default=None, compare=False, repr=False)
    moved: "tuple[Call, Mapping[int, int]] | None" = field(default=None, compare=False, repr=False)

    def __getattr__(self, name: str) -> Any:
        """Make a call's arguments and outputs on other blocks when first asked for, as predictions ask for few."""
        if name not in _WITH_VALUES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        assert self.moved is not None, "only calls on other blocks lack values"
        call, blocks = self.moved
        for each in _WITH_VALUES:
            object.__setattr__(self, each, map_values(getattr(call, each), partial(_moved, blocks)))
        object.__setattr__(self, "moved", None)
        return getattr(self, name)


_WITH_VALUES = ("args", "kwargs", "outputs")


def resolve_operator(call: Call) -> OpOverload:
    """Return the ATen overload of a call, named like ``"aten.convolution.default"``."""
    namespace, name, overload = call.operator.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def signature(operator: str, *arguments: Any) -> Hashable:
    """Return an operator with its arguments, but without the blocks of their values: equal calls run alike."""
    return operator, without_blocks(arguments)


def without_blocks(argument: Any) -> Any:
    """Return a call's argument without the blocks of its values, and without their offsets, to be compared."""
    if isinstance(argument, Value):
        return argument.dtype, argument.shape, argument.stride, argument.conjugated, argument.negated
    if isinstance(argument, ShapeOf):
        return "shape", without_blocks(argument.value)
    if isinstance(argument, tuple | list):
        return tuple(without_blocks(item) for item in argument)
    if isinstance(argument, int | float | complex):
        return repr(argument)  # 1, 1.0 and True are equal, and make different tensors
    return argument


def on_blocks(call: Call, blocks: Mapping[int, int]) -> Call:
    """Return the call with each block replaced by one of the given ones, which do not change later."""
    new = object.__new__(Call)
    for name, value in (("operator", call.operator), ("like", call.like or call), ("moved", (call, blocks))):
        object.__setattr__(new, name, value)
    return new


def _moved(blocks: Mapping[int, int], value: Value) -> Value:
    block = blocks.get(value.block, value.block)
    return Value(block, value.dtype, value.shape, value.stride, value.offset, value.conjugated, value.negated)


def map_values(arguments: Any, new: Callable[[Value], Value]) -> Any:
    """Return a call's arguments, or some of them, with each value replaced; lists of values are tuples."""
    if isinstance(arguments, Value):
        return new(arguments)
    if isinstance(arguments, tuple):
        return tuple([map_values(item, new) for item in arguments])
    return arguments


def values_in(arguments: Any) -> list[Value]:
    """Return the values of a call's arguments, or of some of them, in order."""
    if isinstance(arguments, Value):
        return [arguments]
    if isinstance(arguments, tuple):
        return [value for item in arguments if isinstance(item, Value | tuple) for value in values_in(item)]
    return []
