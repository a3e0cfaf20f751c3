"""Bands: some rows of a feature map in a block of their own."""

from dataclasses import dataclass

import torch

from membench.core.graph.call import Value
from membench.core.graph.task_graph import RESULT_ROLES, TaskGraph
from membench.strategies.mmcnn.windows import window_of


@dataclass(frozen=True, slots=True)
class Band:
    """Rows of a feature map from `start` up to but not including `end`, in a block of their own."""

    start: int
    end: int
    block: int


def has_rows_of(whole: Value, value: Value) -> bool:
    """Return whether a value is whole rows of a feature map in row-major order, of all channels or of some."""
    if len(value.shape) < 4 or value.shape[-2:] != whole.shape[-2:]:
        return False
    rows, columns = value.shape[-2:]
    plane = rows * columns
    outer = zip(value.shape[:-2], value.stride[:-2], strict=True)
    return (
        (value.stride[-1] == 1 or columns == 1)
        and (value.stride[-2] == columns or rows == 1)
        and value.offset % plane == 0
        and all(stride % plane == 0 for size, stride in outer if size > 1)
    )


def splittable_blocks(graph: TaskGraph) -> dict[int, Value]:
    """Return blocks that may lie in bands, every update being by rows, and the values created there."""
    read = {block for task in graph.tasks for block in task.reads}
    created: dict[int, Value] = {}
    for task in graph.tasks:
        call = task.call
        if call is None:
            continue
        result = call.outputs[0]
        if result is None:
            target = call.args[0]
            if target.block in created and (window_of(call) is None or not has_rows_of(created[target.block], target)):
                del created[target.block]
        elif (
            graph.blocks[result.block].role not in RESULT_ROLES
            and result.extent_bytes == graph.blocks[result.block].size_bytes
            and has_rows_of(result, result)
            and not read.intersection(task.creates[1:])
        ):
            created[result.block] = result
    return created


def in_band(value: Value, band: Band, rows: int) -> Value:
    """Return the rows of a value that lie in a band, as a value in the band's block."""
    columns = value.shape[-1]
    plane, own_plane = rows * columns, (band.end - band.start) * columns
    shape = (*value.shape[:-2], band.end - band.start, columns)
    stride = (*[stride // plane * own_plane for stride in value.stride[:-2]], columns, 1)
    return Value(band.block, value.dtype, shape, stride, value.offset // plane * own_plane)


def narrow_rows(value: Value, start: int, end: int) -> Value:
    """Return some rows of a value, from `start` up to but not including `end`."""
    shape = (*value.shape[:-2], end - start, value.shape[-1])
    return Value(value.block, value.dtype, shape, value.stride, value.offset + start * value.stride[-2])


def with_rows(value: Value, rows: int) -> Value:
    """Return a row-major value in the same block with another number of rows."""
    return row_major(value.block, value.dtype, (*value.shape[:-2], rows, value.shape[-1]))


def row_major(block: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Value:
    """Return a value in row-major order from the start of its block."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return Value(block, dtype, shape, tuple(reversed(strides)), 0)
