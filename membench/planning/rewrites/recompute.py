"""Recomputation as a rewrite of the graph: forward tasks run again in the backward pass, into blocks of their own.

    forward:    a = f(x);  b = g(a);  c = h(b)              a and b are dropped after h
    backward:   a' = f(x);  b' = g(a');  ... h's, g's and f's gradients read a' and b' in place of a and b

Every task of the rewritten graph runs exactly once, so builder, `validate` and executor need no support for
recomputation. The results are the same bits: a random task never runs again, running statistics are updated once, and a
recomputed task reads what the original read, in-place operators included. A block that cannot be recomputed under these
rules is kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import torch

from membench.core.graph.call import Call, Value
from membench.core.graph.changed_tasks import numbered, rename_blocks
from membench.core.graph.fused_calls import without_statistics
from membench.core.graph.task_graph import (
    EXTERNAL_ROLES,
    RECOMPUTED_SUFFIX,
    RESULT_ROLES,
    Block,
    Phase,
    Role,
    Task,
    TaskGraph,
)
from membench.core.hardware.cost_model import CostModel
from membench.core.libraries.torch_internals import suggest_memory_format

_EXACT_FROM_MASK = frozenset({torch.float32, torch.float64})
"""In half precision, dropout rounds its scale before it multiplies; its backward, which is used instead, does not."""

_Repetition = tuple[int, int]
"""A segment, and the layer of the backward pass (its position) for which it runs again."""

_FOR_ALL_LAYERS = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """Results of the forward pass that are dropped there and recomputed together.

    Attributes:
        dropped: blocks; all tasks that write them run again.
        per_layer: recompute for each layer of the backward pass anew, and only what that layer needs; otherwise once,
            right before the first task that needs any of them.
    """

    dropped: frozenset[int]
    per_layer: bool = False


@dataclass(frozen=True, slots=True)
class RenamedTask:
    """A task of a graph, and the copies that it touches in place of the blocks that it names."""

    task: Task
    copies: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Order:
    """The tasks of a recomputing graph in order, before they are rewritten, which is what takes the time.

    Attributes:
        blocks: those of the original graph; and behind them, for each copy, its original.
    """

    tasks: tuple[RenamedTask, ...]
    blocks: tuple[Block, ...]


class Repeatable:
    """The forward tasks of a graph that can be recomputed, found once for any number of choices of segments.

    Args:
        graph: annotated.
        cost: annotates the recomputed tasks; some run another operator than the original.

    Attributes:
        again: recomputed tasks, by the index of the original.
        touching: for each block the tasks of `again` that read or write it, by that index.
        last_write: the last task that writes a block, before the update: nothing is recomputed after that.
    """

    def __init__(self, graph: TaskGraph, cost: CostModel) -> None:
        self.graph = graph
        again: dict[int, Task] = {}
        for task in graph.tasks:
            if (second := _second_time(graph, task)) is not None:
                name = f"{task.name}{RECOMPUTED_SUFFIX}"
                again[task.index] = replace(second, index=len(again), name=name, phase=Phase.BACKWARD)
        annotated = cost.annotate(replace(graph, tasks=tuple(again.values())))
        self.again = dict(zip(again, annotated.tasks, strict=True))
        self.touching: dict[int, list[int]] = defaultdict(list)
        for index, task in self.again.items():
            for block in {*task.reads, *task.writes}:
                self.touching[block].append(index)
        before_update = (task for task in graph.tasks if task.phase is not Phase.UPDATE)
        self.last_write = {block: task.index for task in before_update for block in task.writes}


def recompute(repeatable: Repeatable, segments: Sequence[Segment]) -> TaskGraph:
    """Return the annotated graph in which the backward pass recomputes those dropped blocks that it reads.

    A block is kept although a segment drops it where it

    - is a result of the step, or is written in the backward pass;
    - is written by a task that cannot run twice: one that draws random numbers, or updates the caller's blocks. Of
      dropout only the mask is kept; batch norm runs again without its running statistics;
    - is written together with a block that is kept;
    - depends on earlier contents of a block that is kept and is written in place later;
    - is read by what another segment recomputes.

    The run time is linear in the number of tasks, and for `per_layer` in the number of recomputed ones.
    """
    return reordered(repeatable.graph, recomputing_order(repeatable, segments))


def reordered(graph: TaskGraph, order: Order) -> TaskGraph:
    """Return the graph with the tasks of an order and the copies that they touch."""
    tasks = numbered(rename_blocks(item.task, item.copies) for item in order.tasks)
    copied = enumerate(order.blocks[len(graph.blocks) :], start=len(graph.blocks))
    copies = (replace(block, index=index, name=f"{block.name}{RECOMPUTED_SUFFIX}") for index, block in copied)
    return replace(graph, blocks=(*graph.blocks, *copies), tasks=tasks)


def recomputing_order(repeatable: Repeatable, segments: Sequence[Segment]) -> Order:
    """Return the order of `recompute`'s graph: enough to count the memory that it will hold."""
    return _Recomputation(repeatable, segments).order()


class _Recomputation:
    def __init__(self, repeatable: Repeatable, segments: Sequence[Segment]) -> None:
        self._repeatable = repeatable
        self._graph = repeatable.graph
        self._segments = segments
        self._segment_of = {block: n for n, segment in enumerate(segments) for block in segment.dropped}
        self._blocks = list(self._graph.blocks)
        self._keep_blocks()

    # ---- what can be dropped ------------------------------------------------------------------------

    def _keep_blocks(self) -> None:
        pending = [block for task in self._graph.tasks for block in self._must_stay(task)]
        pending += [b.index for b in self._graph.blocks if b.role in EXTERNAL_ROLES | RESULT_ROLES]
        while pending:
            kept = pending.pop()
            if self._segment_of.pop(kept, None) is None:
                continue
            for index in self._repeatable.touching[kept]:
                again = self._repeatable.again[index]
                if kept in again.writes or self._is_stale(kept, index):
                    pending.extend(again.writes)

    def _must_stay(self, task: Task) -> Iterable[int]:
        """Return the blocks that one task requires to be kept if all others are dropped as requested."""
        again = self._repeatable.again.get(task.index)
        if again is None:
            return task.writes
        only_once = [block for block in task.writes if block not in again.writes]
        segments = {self._segment_of.get(block) for block in again.writes}
        if segments == {None}:
            return only_once
        if len(segments) > 1 or any(self._is_stale(block, task.index) for block in again.reads):
            return task.writes
        return only_once + [block for block in again.reads if self._segment_of.get(block) not in segments]

    def _is_stale(self, block: int, index: int) -> bool:
        """Return whether a kept block has been overwritten, by the backward pass, since a task read it."""
        return block not in self._segment_of and self._repeatable.last_write.get(block, -1) > index

    # ---- the backward pass --------------------------------------------------------------------------

    def order(self) -> Order:
        sources = self._sources()
        wanted: dict[_Repetition, list[int]] = defaultdict(list)
        for source in sources.values():
            for block, repetition in source.items():
                wanted[repetition].append(block)
        copies: dict[_Repetition, dict[int, int]] = {}
        tasks: list[RenamedTask] = []
        for task in self._graph.tasks:
            source = sources.get(task.index, {})
            for repetition in source.values():
                if repetition not in copies:
                    copies[repetition] = self._copy(again := self._needed_for(wanted[repetition]))
                    tasks += (RenamedTask(other, copies[repetition]) for other in again)
            tasks.append(RenamedTask(task, {block: copies[source[block]][block] for block in source}))
        return Order(tuple(tasks), tuple(self._blocks))

    def _sources(self) -> dict[int, dict[int, _Repetition]]:
        """Return for each task of the backward pass the repetitions that provide the dropped blocks it reads."""
        sources: dict[int, dict[int, _Repetition]] = defaultdict(dict)
        for number, layer in enumerate(self._graph.backward_layers):
            for task in layer.tasks:
                for block in task.reads:
                    if block in self._segment_of:
                        segment = self._segment_of[block]
                        per_layer = self._segments[segment].per_layer
                        sources[task.index][block] = segment, number if per_layer else _FOR_ALL_LAYERS
        return sources

    def _needed_for(self, wanted: list[int]) -> list[Task]:
        """Return the tasks that compute these blocks and their dropped inputs, in the order of the forward pass."""
        needed: set[int] = set()
        pending = list(wanted)
        while pending:
            block = pending.pop()
            for index in self._repeatable.touching[block]:
                again = self._repeatable.again[index]
                if block in again.writes and index not in needed:
                    needed.add(index)
                    pending.extend(read for read in again.reads if read in self._segment_of)
        return [self._repeatable.again[index] for index in sorted(needed)]

    def _copy(self, tasks: Iterable[Task]) -> dict[int, int]:
        """Add a copy of each block that the tasks create, and return the copies by their originals."""
        created = [block for task in tasks for block in task.creates]
        copies = dict(zip(created, count(len(self._blocks))))
        self._blocks += (self._graph.blocks[block] for block in created)
        return copies


def _second_time(graph: TaskGraph, task: Task) -> Task | None:
    """Return a task of the forward pass in the form that can run a second time; None where there is none."""
    if task.phase is not Phase.FORWARD or (task.collective and not _gathers_weights(graph, task)):
        return None
    if task.random:
        return _from_mask(graph, task)
    updated = [block for block in task.writes if graph.blocks[block].role in EXTERNAL_ROLES]
    return _without_statistics(task, updated) if updated else task


def _gathers_weights(graph: TaskGraph, task: Task) -> bool:
    """Return whether a task only fills gathered weights and their buffers, as all ranks can at any time."""
    return all(graph.blocks[block].role is Role.GATHERED for block in task.writes)


def _from_mask(graph: TaskGraph, task: Task) -> Task | None:
    """Return dropout as the product of its input, the mask kept from the forward pass, and the scale."""
    if task.call is None:
        mask = [block for block in task.creates if graph.blocks[block].role is Role.INTERNAL]
        call = None
    else:
        call = _product_with_mask(task.call)
        mask = [call.args[1].block] if call else []
    if not mask:
        return None
    return replace(
        task,
        reads=(*task.reads, *mask),
        writes=tuple(block for block in task.writes if block not in mask),
        creates=tuple(block for block in task.creates if block not in mask),
        random=False,
        call=call,
    )


def _product_with_mask(dropout: Call) -> Call | None:
    if dropout.operator != "aten.native_dropout.default":
        return None
    inputs, probability, training = dropout.args
    output, mask = dropout.outputs
    if not training or not 0 < probability < 1 or inputs.dtype not in _EXACT_FROM_MASK:
        return None
    if output is None or not _has_memory_format(output):
        return None  # a GPU's gradient of dropout has one, where dropout keeps any layout
    operator = "aten.native_dropout_backward.default"  # its gradient has the same form
    return Call(operator, (inputs, mask, 1 / (1 - probability)), (), (output,))


def _has_memory_format(value: Value) -> bool:
    tensor = torch.empty_strided(value.shape, value.stride, device="meta")
    return tensor.is_contiguous(memory_format=suggest_memory_format(tensor))


def _without_statistics(task: Task, updated: list[int]) -> Task | None:
    """Return batch norm, alone or in a program, without running statistics; tasks without a call have no others."""
    call = task.call and without_statistics(task.call)
    if task.call is not None and call is None:
        return None
    return replace(
        task,
        reads=tuple(block for block in task.reads if block not in updated),
        writes=tuple(block for block in task.writes if block not in updated),
        call=call,
    )
