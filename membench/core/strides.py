"""Views of one tensor of a block by another: as reshapes and permutations, which a compiler can follow through a kernel."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from membench.core.call import Value


@dataclass(frozen=True, slots=True)
class View:
    """The same elements in other dimensions: permuted, reshaped, permuted again, and repeated.

    Attributes:
        in_memory: the order of a tensor's dimensions in memory.
        reshaped: sizes that its elements get in that order.
        order: of these dimensions in the view.
        with_ones: sizes of the view before elements are repeated.
        shape: of the view.
    """

    in_memory: tuple[int, ...]
    reshaped: tuple[int, ...]
    order: tuple[int, ...]
    with_ones: tuple[int, ...]
    shape: tuple[int, ...]

    def of(
        self,
        tensor: Any,
        permute: Callable[..., Any],
        reshape: Callable[..., Any],
        expand: Callable[..., Any],
    ) -> Any:
        """Return the view of a tensor, by functions that take a tensor and a list of dimensions or sizes."""
        in_memory = permute(tensor, list(self.in_memory))
        ordered = permute(reshape(in_memory, list(self.reshaped)), list(self.order))
        return expand(reshape(ordered, list(self.with_ones)), list(self.shape))


def view_of(whole: Value, part: Value) -> View | None:
    """Return a value as a view of the value that fills its block; None if it is not all of its elements in other dimensions."""
    in_memory = tuple(
        sorted(range(len(whole.shape)), key=lambda axis: (-whole.stride[axis], whole.shape[axis] == 1))
    )
    if part.dtype is not whole.dtype or part.offset != whole.offset or not _is_dense(whole, in_memory):
        return None
    axes = [
        axis
        for axis, (size, step) in enumerate(zip(part.shape, part.stride, strict=True))
        if size > 1 and step
    ]
    by_memory = sorted(axes, key=lambda axis: -part.stride[axis])
    sizes = [part.shape[axis] for axis in by_memory]
    if prod(sizes) != prod(whole.shape) or any(
        part.stride[axis] != prod(sizes[position + 1 :]) for position, axis in enumerate(by_memory)
    ):
        return None
    order = tuple(by_memory.index(axis) for axis in axes)
    with_ones = tuple(size if axis in axes else 1 for axis, size in enumerate(part.shape))
    return View(in_memory, tuple(sizes), order, with_ones, part.shape)


def _is_dense(value: Value, in_memory: tuple[int, ...]) -> bool:
    sizes = [value.shape[axis] for axis in in_memory]
    return all(
        value.shape[axis] == 1 or value.stride[axis] == prod(sizes[position + 1 :])
        for position, axis in enumerate(in_memory)
    )
