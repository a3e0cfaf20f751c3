"""A block's tensors as views of another: reshapes, permutations and slices, which a compiler can follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from membench.core.graph.call import Value


@dataclass(frozen=True, slots=True)
class View:
    """The same elements in other dimensions, or a part of them: permuted, reshaped, cut, permuted again, and repeated.

    Attributes:
        in_memory: the order of a tensor's dimensions in memory.
        reshaped: sizes that its elements get in that order.
        cuts: a dimension of these, the first index of it in the view, and the one after the last.
        order: order of these dimensions in the view.
        with_ones: sizes of the view before elements are repeated.
        shape: the view's shape.
    """

    in_memory: tuple[int, ...]
    reshaped: tuple[int, ...]
    cuts: tuple[tuple[int, int, int], ...]
    order: tuple[int, ...]
    with_ones: tuple[int, ...]
    shape: tuple[int, ...]

    def of(
        self,
        tensor: Any,
        permute: Callable[..., Any],
        reshape: Callable[..., Any],
        cut: Callable[..., Any],
        expand: Callable[..., Any],
    ) -> Any:
        """Return the view of a tensor, by functions that take a tensor and a list of dimensions or sizes, or a cut."""
        part = reshape(permute(tensor, list(self.in_memory)), list(self.reshaped))
        for axis, start, end in self.cuts:
            part = cut(part, axis, start, end)
        ordered = permute(part, list(self.order))
        return expand(reshape(ordered, list(self.with_ones)), list(self.shape))


def view_of(whole: Value, part: Value) -> View | None:
    """Return a value as a view of its block's, None if its elements are not a box of some reshape of that."""
    in_memory = tuple(sorted(range(len(whole.shape)), key=lambda axis: (-whole.stride[axis], whole.shape[axis] == 1)))
    if part.dtype is not whole.dtype or not _is_dense(whole, in_memory):
        return None
    axes = [axis for axis, (size, step) in enumerate(zip(part.shape, part.stride, strict=True)) if size > 1 and step]
    by_memory = sorted(axes, key=lambda axis: -part.stride[axis])
    steps = [prod(whole.shape), *(part.stride[axis] for axis in by_memory), 1]
    if any(outer % inner for outer, inner in pairwise(steps)):
        return None
    sizes = [outer // inner for outer, inner in pairwise(steps)]
    starts = _digits(part.offset - whole.offset, steps[1:])
    ends = [start + part.shape[axis] for start, axis in zip(starts, by_memory, strict=False)]
    ends.append(starts[-1] + 1)  # within the last step lies a single element
    if starts[0] < 0 or any(end > size for end, size in zip(ends, sizes, strict=True)):
        return None
    order = [by_memory.index(axis) for axis in axes]
    if sizes[-1] == 1:
        sizes.pop()
    else:
        order.append(len(axes))
    cuts = tuple(
        (axis, start, end)
        for axis, (size, start, end) in enumerate(zip(sizes, starts, ends, strict=False))
        if end - start < size
    )
    with_ones = tuple(size if axis in axes else 1 for axis, size in enumerate(part.shape))
    return View(in_memory, tuple(sizes), cuts, tuple(order), with_ones, part.shape)


def _digits(offset: int, steps: Sequence[int]) -> list[int]:
    """Return how many of each step are in an offset, of which the larger steps come first."""
    digits = []
    for step in steps:
        digit, offset = divmod(offset, step)
        digits.append(digit)
    return digits


def _is_dense(value: Value, in_memory: tuple[int, ...]) -> bool:
    sizes = [value.shape[axis] for axis in in_memory]
    return all(
        value.shape[axis] == 1 or value.stride[axis] == prod(sizes[position + 1 :])
        for position, axis in enumerate(in_memory)
    )
