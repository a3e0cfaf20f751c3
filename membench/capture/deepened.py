"""The graph of a deep network from that of a copy with few blocks: blocks in the middle are repeated.

    before | block 0, 1, 2, 3, 4, 5 | loss | block 5, 4, 3, 2, 1, 0      a copy's tasks; memory and layers are listed in such runs too
    before | block 0, 1, 2, 3, 2, 3, ... 4, 5 | loss | ...

A task in the place of another reads and writes what stands as far from its block as with the other one. It is not derived that this is
so: `graph_at` makes the graph of a somewhat deeper copy in this way, and compares it with what is captured of that.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Generic, TypeVar

from membench.capture.capture import Captures
from membench.capture.depth import AT_THE_ENDS, PERIOD, Depth
from membench.core.call import Call, ShapeOf, Value
from membench.core.changed_tasks import changed
from membench.core.errors import MembenchError
from membench.core.task_graph import Block, Task, TaskGraph

Item = TypeVar("Item")

OUTSIDE = -1
"""In place of a block: what belongs to none."""


LEAST_DEPTH = 28
"""With fewer blocks the whole network is captured as soon as its copies are."""


_NUMBER = re.compile(r"\d+(?=[.:]|$)")


class _NotInRuns(Exception):
    """What belongs to the blocks does not come block by block, or something else refers to one in the middle."""


def graph_at(captures: Captures, size: int) -> TaskGraph:
    """Return the graph of a step on a number of samples; that of a deep network on the meta device from those of two shallow copies.

    The second of these has to be what the first one makes of it, and the operators of the whole network those that they lead to expect.

    Raises:
        UnsupportedModel: see `Captures.at`.
    """
    depth = Depth.greatest(captures.workload.module)
    found = _deep(captures, size, depth) if depth is not None and depth.blocks > LEAST_DEPTH else None
    return found or captures.graph_at(size)


def _deep(captures: Captures, size: int, depth: Depth) -> TaskGraph | None:
    """Return the graph of a deep network; None where it does not follow from those of its copies."""
    with suppress(MembenchError, _NotInRuns):  # a copy may be refused where the network is not
        with captures.prepared(size) as divided:
            is_alike = Depth.greatest(divided.module) == depth
        if not (is_alike and depth.repeats(captures.workload.of_size(size))):
            return None
        few = depth.shallow
        first, second = (
            captures.of(depth.copy(captures.workload.module, blocks)).graph_at(size)
            for blocks in (few, few + PERIOD)
        )
        if deepened(first, few, depth.with_blocks(few + PERIOD)) == second:
            return deepened(first, few, depth)
    return None


def deepened(graph: TaskGraph, shallow: int, depth: Depth) -> TaskGraph:
    """Return a graph with as many blocks as a depth has.

    Args:
        graph: of a copy whose number of blocks is `shallow`.
    """
    plain = None if graph.plain is None else deepened(graph.plain, shallow, depth)
    if plain is not None and graph.is_plain_alone:
        return replace(plain, plain=plain)
    return replace(_Deepened(graph, shallow, depth).graph(), plain=plain)


@dataclass(frozen=True)
class _Run(Generic[Item]):
    """Items of one block that follow each other.

    Attributes:
        sweep: number of the pass over all blocks that it is a part of; of what belongs to no block, a number of its own.
        begin: position of its first item.
    """

    sweep: int
    block: int
    begin: int
    items: Sequence[Item]


class _Runs(Generic[Item]):
    """A sequence with what belongs to the blocks of a copy, and that of the deep network.

    Attributes:
        deep: runs of the deep network, in order: the block there, and the copy's run that it repeats.
    """

    def __init__(
        self, items: Sequence[Item], block_of: Callable[[Item], int], shallow: int, depth: Depth
    ) -> None:
        self._shallow, self._depth = shallow, depth
        self._runs = list(self._found(items, block_of))
        self._of = {(run.sweep, run.block): run for run in self._runs}
        self._run_at = [run for run in self._runs for _ in run.items]
        self.deep: list[tuple[int, _Run[Item]]] = []
        for _, group in groupby(self._runs, lambda run: run.sweep):
            self.deep += self._repeated(list(group))
        self._begins: dict[tuple[int, int], int] = {}
        position = 0
        for block, run in self.deep:
            self._begins[run.sweep, block] = position
            position += len(run.items)

    def _found(self, items: Sequence[Item], block_of: Callable[[Item], int]) -> Iterable[_Run[Item]]:
        """Yield the runs; what lies between those of neighbours and belongs to no block is a part of the first of them."""
        groups = [(block, list(group)) for block, group in groupby(items, block_of)]
        joined = groups[:1]
        for (block, listed), (following, _) in zip(groups[1:], [*groups[2:], (OUTSIDE, [])], strict=True):
            before, last = joined[-1]
            if before == block or (
                block == OUTSIDE and OUTSIDE not in (before, following) and abs(before - following) == 1
            ):
                last.extend(listed)
            else:
                joined.append((block, listed))
        sweep, begin, before = 0, 0, OUTSIDE
        for block, listed in joined:
            if block == OUTSIDE or before == OUTSIDE or abs(block - before) != 1:
                sweep += 1
            yield _Run(sweep, block, begin, listed)
            begin, before = begin + len(listed), block

    def _repeated(self, runs: list[_Run[Item]]) -> Iterable[tuple[int, _Run[Item]]]:
        blocks = [run.block for run in runs]
        if blocks == [OUTSIDE]:
            return [(OUTSIDE, runs[0])]
        every = list(range(self._shallow))
        if blocks not in (every, every[::-1]):
            raise _NotInRuns
        order = range(self._depth.blocks) if blocks == every else reversed(range(self._depth.blocks))
        return [(block, self._of[runs[0].sweep, self._depth.source(block, self._shallow)]) for block in order]

    def moved(self, position: int, user: int, like: int) -> int:
        """Return the position of what a user of the deep network refers to.

        Args:
            position: of what the copy's user refers to.
            user: its block in the deep network.
            like: the copy's block that it repeats.
        """
        run = self._run_at[position]
        if run.block == OUTSIDE:
            block = OUTSIDE
        elif user != OUTSIDE:
            block = user + run.block - like
        elif AT_THE_ENDS <= run.block < self._shallow - AT_THE_ENDS:
            raise _NotInRuns
        else:
            block = run.block if run.block < AT_THE_ENDS else self._depth.blocks - self._shallow + run.block
        begin = self._begins.get((run.sweep, block))
        if begin is None:
            raise _NotInRuns
        return begin + position - run.begin


class _Deepened:
    """Makes a graph."""

    def __init__(self, graph: TaskGraph, shallow: int, depth: Depth) -> None:
        self._graph, self._within, self._depth, self._shallow = graph, f"{depth.container}.", depth, shallow
        runs = partial(_Runs, shallow=shallow, depth=depth)
        self._layers: _Runs[str] = runs(graph.layers, self._named)
        self._blocks: _Runs[Block] = runs(graph.blocks, self._of_block)
        self._tasks: _Runs[Task] = runs(graph.tasks, lambda task: self._of_layer(task.layer))

    def graph(self) -> TaskGraph:
        """Return the deep graph."""
        graph = self._graph
        if (
            graph.output is not None
            or graph.objects_after
            or any(graph.input_gradients)
            or graph.output_gradients
        ):
            raise _NotInRuns  # of a loss within the graph alone
        layers = [self._name(name, *at) for at, name in self._each(self._layers)]
        blocks = [self._block(block, *at) for at, block in self._each(self._blocks)]
        tasks = [self._task(task, *at) for at, task in self._each(self._tasks)]
        runs = partial(_Runs, shallow=self._shallow, depth=self._depth)
        gradients: _Runs[tuple[str, Value | None]] = runs(
            graph.gradients, lambda named: self._named(named[0])
        )
        completed: _Runs[str] = runs(graph.completed, self._named)
        return replace(
            graph,
            blocks=tuple(replace(block, index=index) for index, block in enumerate(blocks)),
            tasks=tuple(changed(task, index=index) for index, task in enumerate(tasks)),
            layers=tuple(layers),
            loss=graph.loss and self._value(graph.loss, OUTSIDE, OUTSIDE),
            gradients=tuple(
                (self._name(name, *at), value and self._value(value, *at))
                for at, (name, value) in self._each(gradients)
            ),
            completed=tuple(self._name(name, *at) for at, name in self._each(completed)),
            plain=None,
        )

    def _each(self, runs: _Runs[Item]) -> Iterable[tuple[tuple[int, int], Item]]:
        """Yield the items of the deep network, each of the copy: with its block there, and here."""
        for block, run in runs.deep:
            yield from (((block, run.block), item) for item in run.items)

    def _named(self, name: str) -> int:
        """Return the block that something is in, by its name."""
        if not name.startswith(self._within):
            return OUTSIDE
        found = _NUMBER.match(name, len(self._within))
        return int(found[0]) if found else OUTSIDE

    def _of_layer(self, layer: int) -> int:
        return OUTSIDE if layer < 0 else self._named(self._graph.layers[layer])

    def _of_block(self, block: Block) -> int:
        return self._named(block.name) if block.layer < 0 else self._of_layer(block.layer)

    def _name(self, name: str, block: int, like: int) -> str:
        """Return a name in the deep network; it may be that of a neighbour."""
        number = self._named(name)
        if OUTSIDE in (block, number):
            return name
        old = f"{self._within}{number}"
        return f"{self._within}{number + block - like}{name[len(old) :]}"

    def _layer(self, layer: int, block: int, like: int) -> int:
        return layer if layer < 0 else self._layers.moved(layer, block, like)

    def _moved(self, index: int, block: int, like: int) -> int:
        return self._blocks.moved(index, block, like)

    def _value(self, value: Value, block: int, like: int) -> Value:
        moved = self._moved(value.block, block, like)
        return Value(
            moved, value.dtype, value.shape, value.stride, value.offset, value.conjugated, value.negated
        )

    def _block(self, of: Block, block: int, like: int) -> Block:
        if of.host_location is not None or of.repeats is not None:
            raise _NotInRuns
        return replace(of, name=self._name(of.name, block, like), layer=self._layer(of.layer, block, like))

    def _task(self, task: Task, block: int, like: int) -> Task:
        changes: dict[str, Any] = {
            name: tuple([self._moved(each, block, like) for each in getattr(task, name)])
            for name in ("reads", "writes", "creates", "releases")
        }
        if (call := task.call) is not None:
            moved = partial(self._value, block=block, like=like)
            args, kwargs, outputs = (
                _on_blocks(part, moved) for part in (call.args, call.kwargs, call.outputs)
            )
            changes["call"] = Call(call.operator, args, kwargs, outputs, call.like or call)
        name, layer = self._name(task.name, block, like), self._layer(task.layer, block, like)
        return changed(task, name=name, layer=layer, **changes)


def _on_blocks(arguments: Any, moved: Callable[[Value], Value]) -> Any:
    """Return a call's arguments with each value replaced, those of shapes too."""
    if isinstance(arguments, Value):
        return moved(arguments)
    if isinstance(arguments, ShapeOf):
        return ShapeOf(moved(arguments.value))
    if isinstance(arguments, tuple):
        return tuple([_on_blocks(item, moved) for item in arguments])
    return arguments
