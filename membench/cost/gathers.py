"""Bytes that gathers and scatters move: of the tensor that they look into, those that they touch and not all of it.

    gather      rows of a table, by their numbers     reads the rows that it returns, and the numbers
    scatter     writes rows of a table                reads the numbers and what it writes; a sum reads its place before
    not in place                                      copies all of the table first
    gradient    of gathered rows                      fills all of its result with zeros, then adds to the touched rows

As PyTorch's kernels for CUDA do it (``aten/src/ATen/native/cuda``: ``Indexing.cu``, ``ScatterGatherKernel.cu``,
``Embedding.cu``, ``Loss.cu`` and others). What is touched several times counts at most as the whole tensor does: a
cache has it. Numbers that are sorted before a sum count once.

Operators that pass all elements to find a few are not among them: ``masked_fill``, ``masked_scatter`` and ``where`` are
loops over all.
"""

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch

from membench.core.graph.call import Call, Value, values_in

_GATHERS = {
    **dict.fromkeys((
        "gather", "index", "_unsafe_index", "_unsafe_masked_index", "index_select", "embedding", "take",
        "masked_select", "slice_copy", "select_copy", "narrow_copy", "as_strided_copy", "diagonal_copy", "unfold_copy",
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
    ), 1),
    "upsample_linear1d": 2, "upsample_bilinear2d": 4, "upsample_bicubic2d": 16, "upsample_trilinear3d": 8,
    "grid_sampler_2d": 16, "grid_sampler_3d": 8,
}  # fmt: skip
"""Operators that look into their first argument, and the most of its elements that make one of the result's."""

_BAGS = {
    "_embedding_bag": (0, 1), "_embedding_bag_forward_only": (0, 1),
    "_embedding_bag_per_sample_weights_backward": (1, 2),
}  # fmt: skip
"""Operators that read rows of a table: the positions of the table and of the numbers of its rows."""

_LOSSES = {"nll_loss_forward", "nll_loss2d_forward"}
"""Operators that read one element of their first argument for each label."""

_GRADIENTS_OF_LOSSES = {"nll_loss_backward", "nll_loss2d_backward"}
"""Gradients that write one element among zeros for each label, and read nothing of the loss's argument."""

_GRADIENTS = {
    "embedding_dense_backward", "_embedding_bag_dense_backward", "_embedding_bag_backward", "select_backward",
    "slice_backward", "diagonal_backward", "unfold_backward",
}  # fmt: skip
"""Gradients that fill their result with zeros, and then write or add their first argument to some of it."""

_TOUCHED: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), lambda table, axis, rows, *_: _elements(rows)),
    **dict.fromkeys(("index_add", "index_reduce", "index_copy"),
                    lambda table, axis, rows, source, *_: _elements(source)),
    **dict.fromkeys(("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"),
                    lambda table, source, *_: _elements(source)),
    **dict.fromkeys(("index_put", "_index_put_impl", "_unsafe_index_put"),
                    lambda table, rows, values, *_: _indexed(table, rows, values)),
    "index_fill": lambda table, axis, rows, *_: _elements(rows) * _elements(table) // max(1, table.shape[axis]),
    "put": lambda table, rows, *_: _elements(rows),
    "_unsafe_masked_index_put_accumulate": lambda table, mask, rows, values: _elements(values),
    "embedding_renorm": lambda table, rows, *_: _elements(rows) * table.shape[1],
}  # fmt: skip
"""Operators that write elements of their first argument, or of a copy of it, and their number by the arguments."""

_SUMS = {
    "scatter_add",
    "scatter_reduce",
    "index_add",
    "index_reduce",
    "_unsafe_masked_index_put_accumulate",
    "embedding_renorm",
}
"""Those among them that read what they write to."""
_SUMS_BY_ARGUMENT = {"index_put", "_index_put_impl", "_unsafe_index_put", "put"}
"""Those that do where their fourth argument, `accumulate`, is true."""


def touched_bytes(call: Call) -> int | None:
    """Return the bytes that a gather or scatter reads and writes; None for another operator."""
    name, args = call.operator.split(".")[1], call.args
    if name in _GATHERS:
        return _gathered(call, args[0], _GATHERS[name] * _elements(call.outputs[0]))
    if name in _BAGS:
        table, rows = (args[position] for position in _BAGS[name])
        return _gathered(call, table, _elements(rows) * table.shape[1])
    if name in _LOSSES:
        return _gathered(call, args[0], _elements(args[1]))
    if name in _GRADIENTS_OF_LOSSES:  # the score of a label is not read, but written
        return _gathered(call, args[1], _elements(args[2]))
    if name in _GRADIENTS:
        [result] = values_in(call.outputs)
        return _bytes(_arguments(call)) + result.moved_bytes + _some(result, _elements(args[0]))
    if name in ("searchsorted", "bucketize"):
        return _searched(call, *(args[:2] if name == "searchsorted" else args[1::-1]))
    return _scattered(call, name.removesuffix("_"), in_place=name.endswith("_"))


def _gathered(call: Call, table: Value, elements: int) -> int:
    """Return what a call moves that reads so many elements of a table, and all of its other arguments."""
    others_bytes = _bytes(value for value in _arguments(call) if value is not table)
    return others_bytes + _some(table, elements) + _bytes(values_in(call.outputs))


def _scattered(call: Call, name: str, *, in_place: bool) -> int | None:
    if name not in _TOUCHED:
        return None
    table = call.args[0]
    touched_bytes = _some(table, _TOUCHED[name](*call.args))
    is_sum = name in _SUMS or (name in _SUMS_BY_ARGUMENT and call.args[3:4] == (True,))
    others = [value for value in _arguments(call) if value is not table]
    read_bytes = sum(
        min(value.moved_bytes, touched_bytes) if value.dtype is table.dtype else value.moved_bytes for value in others
    )
    copied_bytes = 0 if in_place else 2 * table.moved_bytes
    return copied_bytes + read_bytes + (1 + is_sum) * touched_bytes


def _searched(call: Call, ordered: Value, values: Any) -> int:
    """Return what a search by halves moves: for each value as many elements as an ordered row can be halved."""
    steps = max(1, ordered.shape[-1]).bit_length()
    return _gathered(call, ordered, steps * (_elements(values) if isinstance(values, Value) else 1))


def _arguments(call: Call) -> list[Value]:
    return values_in((call.args, *(value for _, value in call.kwargs)))


def _bytes(values: Iterable[Value]) -> int:
    return sum(value.moved_bytes for value in values)


def _elements(value: Any) -> int:
    return prod(value.shape) if isinstance(value, Value) else 1


def _some(value: Value, elements: int) -> int:
    """Return the bytes of so many of a value's elements, at most all of them."""
    return min(value.moved_bytes, elements * value.dtype.itemsize)


def _indexed(table: Value, rows: tuple[Value | None, ...], values: Value) -> int:
    """Return how many elements of a table an index has, as between brackets in Python.

    How many a mask chooses is in the values if they are not one for all, and otherwise not known: as if it were all.
    """
    given = [each for each in rows if each is not None]
    if any(each.dtype in (torch.bool, torch.uint8) for each in given):
        return _elements(values) if _elements(values) > 1 else _elements(table)
    axes = [size for size, each in zip(table.shape, rows, strict=False) if each is None]
    rest = prod(axes) * prod(table.shape[len(rows) :])
    return rest * prod(torch.broadcast_shapes(*(each.shape for each in given)))
