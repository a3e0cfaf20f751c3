"""Layers computed in parts: some rows of a feature map at a time, or some output channels with only their weights.

mmCNN, Section 3.1: output channels do not depend on each other (Equation 2), so a convolution or a linear layer may
compute some of them at a time, with the matching weights, and concatenate them (Equation 3). Where a feature map itself
is too large, a layer computes some rows of it, from the rows that its window reaches; these rows lie in blocks of their
own, *bands*, which may be offloaded one by one.

    convolution in 2 x 3 parts       for each share of the channels, for each band of rows:
                                         gather the rows that the band reads      [where they lie in several bands]
                                         pad them                                 [where the window crosses the edge]
                                         compute
                                     for each band: concatenate its channels

Element-wise operators, normalisation and maximum pooling give the same bits as on the whole; convolutions and linear
layers sum in the order that their kernel chooses for the shape. An operator whose rows cannot be computed separately
reads whole feature maps: their bands are gathered first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from membench.core.graph.call import Call, Value, map_values, values_in
from membench.core.graph.changed_tasks import numbered
from membench.core.graph.convolution import Convolution
from membench.core.graph.task_graph import Block, Kind, Role, Task, TaskGraph
from membench.strategies.mmcnn.bands import (
    Band,
    has_rows_of,
    in_band,
    narrow_rows,
    row_major,
    splittable_blocks,
    with_rows,
)
from membench.strategies.mmcnn.channels import Share, even, shares
from membench.strategies.mmcnn.windows import Window, rows_of, window_of


@dataclass(frozen=True, slots=True)
class Parts:
    """The number of parts in which a task is computed: shares of its output's rows, and of its output's channels."""

    rows: int = 1
    channels: int = 1


def partition(graph: TaskGraph, parts: Mapping[int, Parts]) -> TaskGraph:
    """Return an inference graph with tasks computed in parts, with the same results in the same order.

    Args:
        graph: captured with calls.
        parts: by the task's index; at most as many as there are rows and channels. A task that allows neither is left
            whole; one that updates a feature map in place takes the bands that this has.
    """
    partitioner = Partitioner(graph)
    return partitioner.graph_of(chain(*partitioner.pieces(parts)))


def most_parts(graph: TaskGraph) -> list[Parts]:
    """Return for each task the most parts that it can be computed in."""
    splittable = splittable_blocks(graph)

    def most(task: Task) -> Parts:
        result = task.call.outputs[0] if task.call else None
        if task.call is None or result is None:
            return Parts()
        has_rows = window_of(task.call) is not None and result.block in splittable
        return Parts(rows_of(result) if has_rows else 1, len(shares(task.call, most=True)))

    return list(map(most, graph.tasks))


@dataclass(frozen=True, slots=True)
class _Split:
    """The bands of a feature map that has been split, and, once they are gathered, the block with the whole."""

    bands: tuple[Band, ...]
    gathered: int | None = None


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """The tasks that replace a task, and the layout of the blocks that it touches before and after it; None: whole."""

    parts: Parts
    before: tuple[_Split | None, ...]
    piece: tuple[Task, ...]
    after: tuple[_Split | None, ...]


class Partitioner:
    """Partitions a graph repeatedly; a task whose parts are the same as the last time is not rewritten again."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._blocks: list[Block] = list(graph.blocks)
        self._tasks: list[Task] = []  # that replace the task being rewritten
        self._task = graph.tasks[0]  # that is being rewritten
        self._split: dict[int, _Split] = {}
        self._weights: dict[tuple[int, int, int], int] = {}  # (weight, from byte, to byte) -> its own block
        self._splittable = splittable_blocks(graph)
        self._last: dict[int, _Rewritten] = {}

    def pieces(self, parts: Mapping[int, Parts]) -> list[tuple[Task, ...]]:
        """Return the tasks that replace each task of the graph: the last time's object, if they are equal."""
        self._split.clear()
        return [self._piece(task, parts.get(task.index, Parts())) for task in self._graph.tasks]

    def graph_of(self, tasks: Iterable[Task]) -> TaskGraph:
        """Return a graph of some of the tasks that `pieces` has returned, renumbered."""
        return replace(self._graph, blocks=tuple(self._blocks), tasks=numbered(tasks))

    def _piece(self, task: Task, parts: Parts) -> tuple[Task, ...]:
        touched = (*task.reads, *task.writes)
        before = tuple(map(self._split.get, touched))
        last = self._last.get(task.index)
        if last is None or (last.parts, last.before) != (parts, before):
            self._tasks = []
            self._rewrite(task, parts)
            last = _Rewritten(parts, before, tuple(self._tasks), tuple(map(self._split.get, touched)))
            self._last[task.index] = last
        for block, split in zip(touched, last.after, strict=True):
            if split is not None:
                self._split[block] = split
        return last.piece

    def _rewrite(self, task: Task, parts: Parts) -> None:
        self._task = task
        call = task.call
        if call is None:
            self._keep(task)
            return
        window = window_of(call)
        result = call.outputs[0]
        if result is None:
            self._update(task, call, window)
            return
        rows = rows_of(result) if window is not None and result.block in self._splittable else 1
        ranges = even(0, rows, min(parts.rows, rows))
        channels = shares(call, parts.channels)
        if len(ranges) == 1 and len(channels) == 1:
            self._keep(task)
        elif len(ranges) == 1:
            self._compute_channels(task, call, result, channels)
        else:
            assert window is not None
            self._compute_rows(task, call, window, ranges, channels)

    # ---- a task as a whole, by channels, by rows ----------------------------------------------------

    def _keep(self, task: Task) -> None:
        if task.call is None or not self._split.keys() & {*task.reads, *task.writes}:
            self._tasks.append(task)
        else:
            self._add_call(task.name, self._whole_call(task.call), task.creates, task.operations)

    def _compute_channels(self, task: Task, call: Call, result: Value, channels: list[Share]) -> None:
        """Compute some output channels at a time, and concatenate them (mmCNN, Equations 2 and 3)."""
        pieces = [
            self._compute_part(task.name + share.label, self._whole_call(share.narrow(call, self._share_of_weight)))
            for share in channels
        ]
        self._concatenate(task.name, pieces, 1, result)

    def _compute_rows(
        self, task: Task, call: Call, window: Window, ranges: list[tuple[int, int]], channels: list[Share]
    ) -> None:
        """Compute some rows at a time, each band of them in a block of its own."""
        result = call.outputs[0]
        assert result is not None
        pieces: list[list[Value]] = [[] for _ in ranges]
        for share in channels:  # each weight is prefetched once
            of_share = share.narrow(call, self._share_of_weight)
            for position, (start, end) in enumerate(ranges):
                name = f"{task.name}[rows {start}:{end}]{share.label}"
                part = self._call_for_rows(of_share, window, start, end)
                pieces[position].append(self._compute_part(name, part))
        bands = []
        for (start, end), of_band in zip(ranges, pieces, strict=True):
            value = of_band[0]
            if len(of_band) > 1:
                value = self._new_value(f"{task.name}[rows {start}:{end}]", with_rows(result, end - start))
                self._concatenate(task.name, of_band, 1, value)
            bands.append(Band(start, end, value.block))
        self._split[result.block] = _Split(tuple(bands))

    def _update(self, task: Task, call: Call, window: Window | None) -> None:
        """Update a feature map in place, in its own bands, or otherwise in those of the other operand."""
        target = call.args[0]
        banded = [v for v in values_in(call.args) if v.block in self._split]
        if window is None or not banded:
            self._keep(task)
            return
        by = target if target.block in self._split else banded[0]
        for band in self._split[by.block].bands:
            part = self._call_for_rows(call, window, band.start, band.end)
            operations = task.operations * (band.end - band.start) // rows_of(target)
            self._add_call(f"{task.name}[rows {band.start}:{band.end}]", part, (), operations)
        if target.block in self._split:
            self._split[target.block] = replace(self._split[target.block], gathered=None)

    def _compute_part(self, name: str, call: Call) -> Value:
        """Add a part of the task with outputs in new blocks; return the first output."""
        outputs = tuple(value and self._new_value(name, value) for value in call.outputs)
        creates = tuple(value.block for value in outputs if value is not None)
        assert self._task.call is not None
        result, whole = outputs[0], self._task.call.outputs[0]
        assert result is not None and whole is not None
        operations = self._task.operations * result.extent_bytes // whole.extent_bytes
        self._add_call(name, replace(call, outputs=outputs), creates, operations)
        return result

    # ---- arguments ----------------------------------------------------------------------------------

    def _call_for_rows(self, call: Call, window: Window, start: int, end: int) -> Call:
        """Gather and pad the rows that some rows of the output need; return the call that computes these."""
        first, last = window.reads(start, end)
        args = list(call.args)

        def rows(value: Value) -> Value:
            above, below = max(0, -first), max(0, last - rows_of(value))
            inside = self._rows(value, first + above, last - below)
            return self._pad(inside, above, below, window.fill) if above or below else inside

        for position, argument in enumerate(args):
            read = rows if position in window.operands else self._whole_value
            args[position] = map_values(argument, read)
        if window.padding_argument is not None and len(args) > window.padding_argument:
            args[window.padding_argument] = (0, *args[window.padding_argument][1:])
        outputs = tuple(
            with_rows(out, end - start) if out is not None and len(out.shape) >= 4 else out for out in call.outputs
        )
        return replace(call, args=tuple(args), outputs=outputs)

    def _rows(self, value: Value, start: int, end: int) -> Value:
        """Return rows of a feature map as one value; concatenate them where they lie in several bands."""
        if value.block not in self._split or not has_rows_of(self._splittable[value.block], value):
            return narrow_rows(self._whole_value(value), start, end)
        bands = self._split[value.block].bands
        touched = [band for band in bands if band.start < end and start < band.end]
        pieces = []
        for band in touched:
            held = in_band(value, band, rows_of(self._splittable[value.block]))
            low, high = max(start, band.start), min(end, band.end)
            pieces.append(narrow_rows(held, low - band.start, high - band.start))
        if len(pieces) == 1:
            return pieces[0]
        name = f"{self._blocks[value.block].name}[rows {start}:{end}]"
        gathered = self._new_value(name, with_rows(value, end - start))
        self._concatenate(name, pieces, -2, gathered)
        return gathered

    def _pad(self, value: Value, above: int, below: int, fill: float) -> Value:
        name = f"{self._task.name}:pad"
        padded = self._new_value(name, with_rows(value, rows_of(value) + above + below))
        call = Call("aten.constant_pad_nd.default", (value, (0, 0, above, below), fill), (), (padded,))
        self._add_call(name, call, (padded.block,), 0, kind=Kind.OTHER)
        return padded

    def _whole_call(self, call: Call) -> Call:
        """Return a call that reads whole feature maps."""
        args, kwargs = (map_values(part, self._whole_value) for part in (call.args, call.kwargs))
        return replace(call, args=args, kwargs=kwargs)

    def _whole_value(self, value: Value) -> Value:
        """Return a value of the whole feature map, whose bands are gathered once for all readers."""
        split = self._split.get(value.block)
        if split is None:
            return value
        gathered = split.gathered
        if gathered is None:
            created = self._splittable[value.block]
            gathered = self._rows(created, 0, rows_of(created)).block
            self._split[value.block] = replace(split, gathered=gathered)
        return replace(value, block=gathered)

    def _share_of_weight(self, weight: Value, share: Value) -> Value:
        """Return a share of a weight in a block of its own, whose home is its place in the caller's tensor."""
        whole = self._blocks[weight.block]
        if whole.host_location is None:
            return share
        start, size_bytes = (share.offset - weight.offset) * share.dtype.itemsize, share.extent_bytes
        key = (weight.block, start, size_bytes)
        if key not in self._weights:
            home = replace(whole.host_location, offset_bytes=whole.host_location.offset_bytes + start)
            self._weights[key] = len(self._blocks)
            name = f"{whole.name}[{start}:{start + size_bytes} B]"
            self._blocks.append(Block(self._weights[key], name, size_bytes, whole.role, -1, home))
        return replace(share, block=self._weights[key], offset=0)

    # ---- new tasks and blocks -----------------------------------------------------------------------

    def _new_value(self, name: str, layout: Value) -> Value:
        """Return a value in a new block that it fills."""
        value = row_major(len(self._blocks), layout.dtype, layout.shape)
        self._blocks.append(Block(value.block, name, value.extent_bytes, Role.ACTIVATION, self._task.layer))
        return value

    def _concatenate(self, name: str, pieces: list[Value], dimension: int, result: Value) -> None:
        call = Call("aten.cat.default", (tuple(pieces), dimension), (), (result,))
        self._add_call(f"{name}:cat", call, (result.block,), 0, kind=Kind.CONCATENATE)

    def _add_call(
        self, name: str, call: Call, creates: tuple[int, ...], operations: int, kind: Kind | None = None
    ) -> None:
        inputs = values_in((call.args, call.kwargs))
        reads = tuple(dict.fromkeys([value.block for value in inputs]))
        updates = () if creates else (call.args[0].block,)
        moved_bytes = sum([value.extent_bytes for value in (*inputs, *values_in(call.outputs))])
        task = replace(
            self._task,
            name=name,
            kind=kind or self._task.kind,
            reads=reads,
            writes=creates or updates,
            creates=creates,
            operations=operations,
            moved_bytes=moved_bytes,
            workspace_bytes=0,
            convolution=_geometry(self._task, call) if kind is None else None,
            call=call,
        )
        self._tasks.append(task)


def _geometry(task: Task, call: Call) -> Convolution | None:
    """Return the geometry of a part of a convolution."""
    if task.convolution is None or call.outputs[0] is None:
        return None
    images, weight = call.args[:2]
    *_, rows, columns = call.outputs[0].shape
    return replace(
        task.convolution,
        input_channels=images.shape[1],
        output_channels=weight.shape[0],
        input_size=images.shape[2:],
        output_size=(rows, columns),
        padding=call.args[4],
        groups=call.args[8],
    )
