"""Recomputation as a rewrite of the graph: forward tasks run again in the backward pass, into blocks of their own.

    forward:    a = f(x);  b = g(a);  c = h(b)              a and b are dropped: nobody after h reads them
    backward:   a' = f(x);  b' = g(a');  ... h's, g's and f's gradients read a' and b' in place of a and b

Every task of the rewritten graph runs exactly once, so builder, `validate` and executor know nothing of it. The results are
the same bits: a random task never runs again, running statistics are updated once, and what is recomputed sees what the
original saw, in-place operators included. A block that cannot be had again under these rules stays as it was.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from membench.task_graph import (
    EXTERNAL_ROLES,
    RESULT_ROLES,
    Block,
    Call,
    Phase,
    Role,
    Task,
    TaskGraph,
    rename_blocks,
)

_BATCH_NORMS = frozenset({"aten.native_batch_norm.default", "aten.cudnn_batch_norm.default"})
"""A training step updates their fourth and fifth argument, the running statistics; both may be left out."""

_EXACT_FROM_MASK = frozenset({torch.float32, torch.float64})
"""Half precisions round dropout's scale before they multiply with it, but not in its backward, which stands in for it."""

_AGAIN = " again"
"""What the names of recomputed tasks end in."""

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


def recompute(graph: TaskGraph, segments: Sequence[Segment]) -> TaskGraph:
    """Return the graph in which the backward pass recomputes what the segments drop, as far as it reads it.

    A block stays although a segment drops it where it

    - is a result of the step, or is written in the backward pass;
    - is written by a task that cannot run twice: one that draws random numbers, or updates the caller's blocks. Of
      dropout only the mask stays; batch norm runs again without its running statistics;
    - is written together with a block that stays;
    - depends on earlier contents of a block that stays and is written in place later;
    - is read by what another segment recomputes.

    Time is linear in tasks, and for `per_layer` in the recomputed ones.
    """
    return _Recomputation(graph, segments).rewrite()


def is_recomputed(task: Task) -> bool:
    """Return whether a task runs a second time what the forward pass has run before."""
    return task.name.endswith(_AGAIN)


class _Recomputation:
    def __init__(self, graph: TaskGraph, segments: Sequence[Segment]) -> None:
        self._graph = graph
        self._segments = segments
        self._again = {t.index: again for t in graph.tasks if (again := _again(graph, t)) is not None}
        self._touching: dict[int, list[Task]] = defaultdict(list)
        for again in self._again.values():
            for block in {*again.reads, *again.writes}:
                self._touching[block].append(again)
        self._last_write = {block: task.index for task in graph.tasks for block in task.writes}
        self._segment_of = {block: n for n, segment in enumerate(segments) for block in segment.dropped}
        self._blocks = list(graph.blocks)
        self._keep_what_must_stay()

    # ---- what can be dropped ------------------------------------------------------------------------

    def _keep_what_must_stay(self) -> None:
        pending = [block for task in self._graph.tasks for block in self._must_stay(task)]
        pending += [b.index for b in self._graph.blocks if b.role in EXTERNAL_ROLES | RESULT_ROLES]
        while pending:
            kept = pending.pop()
            if self._segment_of.pop(kept, None) is None:
                continue
            for again in self._touching[kept]:
                if kept in again.writes or self._is_stale(kept, again):
                    pending.extend(again.writes)

    def _must_stay(self, task: Task) -> Iterable[int]:
        """Return the blocks that must stay for what one task does, all others being dropped as asked."""
        again = self._again.get(task.index)
        if again is None:
            return task.writes
        only_once = [block for block in task.writes if block not in again.writes]
        segments = {self._segment_of.get(block) for block in again.writes}
        if segments == {None}:
            return only_once
        if len(segments) > 1 or any(self._is_stale(block, again) for block in again.reads):
            return task.writes
        return only_once + [block for block in again.reads if self._segment_of.get(block) not in segments]

    def _is_stale(self, block: int, again: Task) -> bool:
        """Return whether a block that stays no longer holds in the backward pass what the task has read."""
        return block not in self._segment_of and self._last_write.get(block, -1) > again.index

    # ---- the backward pass --------------------------------------------------------------------------

    def rewrite(self) -> TaskGraph:
        sources = self._sources()
        wanted: dict[_Repetition, list[int]] = defaultdict(list)
        for source in sources.values():
            for block, repetition in source.items():
                wanted[repetition].append(block)
        copies: dict[_Repetition, dict[int, int]] = {}
        tasks: list[Task] = []
        for task in self._graph.tasks:
            source = sources.get(task.index, {})
            for repetition in source.values():
                if repetition not in copies:
                    copies[repetition] = self._run_again(wanted[repetition], tasks)
            tasks.append(rename_blocks(task, {block: copies[source[block]][block] for block in source}))
        numbered = tuple(replace(task, index=index) for index, task in enumerate(tasks))
        return replace(self._graph, blocks=tuple(self._blocks), tasks=numbered)

    def _sources(self) -> dict[int, dict[int, _Repetition]]:
        """Return for each task of the backward pass where the dropped blocks come from that it reads."""
        sources: dict[int, dict[int, _Repetition]] = defaultdict(dict)
        for number, layer in enumerate(self._graph.backward_layers):
            for task in layer.tasks:
                for block in task.reads:
                    if block in self._segment_of:
                        segment = self._segment_of[block]
                        per_layer = self._segments[segment].per_layer
                        sources[task.index][block] = segment, number if per_layer else _FOR_ALL_LAYERS
        return sources

    def _run_again(self, wanted: list[int], tasks: list[Task]) -> dict[int, int]:
        """Append what fills these blocks again, and return the new block of each old one."""
        copies: dict[int, int] = {}
        for again in self._needed_for(wanted):
            for block in again.creates:
                copies[block] = self._add_copy(self._graph.blocks[block])
            renamed = {block: copies[block] for block in {*again.reads, *again.writes} if block in copies}
            copy = rename_blocks(again, renamed)
            tasks.append(replace(copy, name=f"{again.name}{_AGAIN}", phase=Phase.BACKWARD))
        return copies

    def _needed_for(self, wanted: list[int]) -> list[Task]:
        """Return the tasks that fill these blocks, and all that those need, in the order of the forward pass."""
        needed: dict[int, Task] = {}
        pending = list(wanted)
        while pending:
            block = pending.pop()
            for again in self._touching[block]:
                if block in again.writes and again.index not in needed:
                    needed[again.index] = again
                    pending.extend(read for read in again.reads if read in self._segment_of)
        return [needed[index] for index in sorted(needed)]

    def _add_copy(self, block: Block) -> int:
        copy = replace(block, index=len(self._blocks), name=f"{block.name} again")
        self._blocks.append(copy)
        return copy.index


def _again(graph: TaskGraph, task: Task) -> Task | None:
    """Return a task of the forward pass as it can run a second time, None where it cannot."""
    if task.phase is not Phase.FORWARD:
        return None
    if task.random:
        return _from_mask(graph, task)
    updated = [block for block in task.writes if graph.blocks[block].role in EXTERNAL_ROLES]
    return _without_statistics(task, updated) if updated else task


def _from_mask(graph: TaskGraph, task: Task) -> Task | None:
    """Return dropout as the product of its input, the mask that the forward pass has kept, and the scale."""
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
    operator = "aten.native_dropout_backward.default"  # its gradient has the same form
    return Call(operator, (inputs, mask, 1 / (1 - probability)), (), (output,))


def _without_statistics(task: Task, updated: list[int]) -> Task | None:
    """Return batch norm without its running statistics; without calls, they are all that a forward task updates."""
    call = task.call
    if call is not None:
        if call.operator not in _BATCH_NORMS:
            return None
        inputs, weight, bias, _, _, *rest = call.args
        call = replace(call, args=(inputs, weight, bias, None, None, *rest))
    return replace(
        task,
        reads=tuple(block for block in task.reads if block not in updated),
        writes=tuple(block for block in task.writes if block not in updated),
        call=call,
    )
