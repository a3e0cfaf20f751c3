"""Micro-batches layer by layer: one graph of a step in which a layer computes all micro-batches before the next does.

    layer 1 of micro-batch 0, of 1, of 2 | layer 2 of 2, of 1, of 0 | ...      in place of      0: all layers | 1: ...

So what a layer needs, above all its weights, has to be on the device once in each pass and not once for each
micro-batch (vertical scheduling in GreedySnake, Yue et al. 2025). What each micro-batch makes are blocks of its own;
weights, buffers and the sums of gradients are those of all.

A layer is an entry of a list of modules, such as a block of a transformer: the first number in a module's name ends
the name of its layer. What lies between two layers is one too, so that head, loss and the head's gradients are
computed for one micro-batch after another, and the outputs of the head are not held for all.

Results are those of one micro-batch after another, to the bit: blocks that several micro-batches write, such as sums of
gradients and statistics of batch norm, are written in their order. Layers that write none compute them in turns
forwards and backwards, so that the first micro-batch of a layer is the last one of the layer before.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from membench.core.errors import UnsupportedStrategy
from membench.core.graph.changed_tasks import numbered, rename_blocks
from membench.core.graph.task_graph import ARGUMENT_ROLES, EXTERNAL_ROLES, Block, Task, TaskGraph

_SHARED = EXTERNAL_ROLES - ARGUMENT_ROLES
"""Roles of blocks that all micro-batches use together."""

_PREFIX = "micro-batch"


def layer_by_layer(graph: TaskGraph, micro_batches: int) -> TaskGraph:
    """Return the step of several micro-batches, from the graph of one; its update is not in it yet.

    Args:
        graph: adds its gradients and its loss to accumulators.

    Raises:
        UnsupportedStrategy: it draws random numbers, which micro-batches one after another draw in another order.
    """
    if micro_batches == 1:
        return graph
    random = next((task for task in graph.tasks if task.random), None)
    if random:
        raise UnsupportedStrategy(
            f"{graph.layers[random.layer]!r} draws random numbers, which micro-batches layer by layer would draw in "
            "another order than one after another; set its probability to 0, compute the whole batch at once, or "
            "choose a strategy without that order"
        )
    return graph.map(lambda each: _of_all(each, micro_batches))


def runs_of_layers(graph: TaskGraph, tasks: Iterable[Task]) -> list[tuple[Task, ...]]:
    """Return tasks as runs of consecutive ones of one layer, whichever micro-batches they compute."""
    named = [_layer_of(name) for name in graph.layers]
    if not any(named):  # no lists of modules
        named = [_without_prefix(name) for name in graph.layers]
    return [tuple(run) for _, run in groupby(tasks, lambda task: named[task.layer])]


def _layer_of(module: str) -> str:
    """Return the name of the entry of a list of modules to which a module belongs; empty: to none."""
    parts = _without_prefix(module).split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def _prefixed(name: str, micro_batch: int) -> str:
    return f"{_PREFIX} {micro_batch}: {name}"


def _without_prefix(name: str) -> str:
    return name.partition(": ")[2] if name.startswith(_PREFIX) else name


def _of_all(graph: TaskGraph, micro_batches: int) -> TaskGraph:
    blocks = list(graph.blocks)
    own = [block for block in graph.blocks if block.role not in _SHARED]
    renamed: list[dict[int, int]] = [{}]
    for micro_batch in range(1, micro_batches):
        renamed.append({block.index: len(blocks) + place for place, block in enumerate(own)})
        blocks += [_copy(graph, block, micro_batch, renamed[-1]) for block in own]
    for block in own:
        blocks[block.index] = replace(block, name=_prefixed(block.name, 0))
    tasks = (
        rename_blocks(
            task,
            renamed[micro_batch],
            name=_prefixed(task.name, micro_batch),
            layer=_layer_copy(graph, task.layer, micro_batch),
            releases=tuple(renamed[micro_batch].get(block, block) for block in task.releases),
        )
        for run, order in _ordered(graph, micro_batches)
        for micro_batch in order
        for task in run
    )
    return replace(
        graph,
        batch_size=graph.batch_size * micro_batches,
        blocks=tuple(blocks),
        tasks=numbered(tasks),
        layers=tuple(_prefixed(name, number) for number in range(micro_batches) for name in graph.layers),
        parts=tuple(
            (block.index, *(copies[block.index] for copies in renamed[1:]))
            for block in own
            if block.role in ARGUMENT_ROLES
        ),
    )


def _copy(graph: TaskGraph, block: Block, micro_batch: int, renamed: dict[int, int]) -> Block:
    return replace(
        block,
        index=renamed[block.index],
        name=_prefixed(block.name, micro_batch),
        layer=_layer_copy(graph, block.layer, micro_batch),
        repeats=None if block.repeats is None else renamed.get(block.repeats, block.repeats),
    )


def _layer_copy(graph: TaskGraph, layer: int, micro_batch: int) -> int:
    return layer if layer < 0 else micro_batch * len(graph.layers) + layer


def _ordered(graph: TaskGraph, micro_batches: int) -> Iterator[tuple[Sequence[Task], Sequence[int]]]:
    """Yield the tasks of each layer in each pass, and the order in which it computes the micro-batches."""
    written = _written_by_all(graph)
    forwards = range(micro_batches)
    order = forwards[::-1]
    for run in _joined(graph, written):
        writes = any(not written.isdisjoint(task.writes) for task in run)
        order = forwards if writes else order[::-1]
        yield run, order


def _written_by_all(graph: TaskGraph) -> frozenset[int]:
    """Return the blocks that each micro-batch writes and that are those of all."""
    written = (block for task in graph.tasks for block in task.writes)
    return frozenset(block for block in written if graph.blocks[block].role in _SHARED)


def _joined(graph: TaskGraph, written: frozenset[int]) -> Iterator[list[Task]]:
    """Yield the runs of layers, joined where several use a block that each micro-batch writes.

    Such as the statistics of a module that is called twice: both calls write them for a micro-batch before the next.
    """
    runs = runs_of_layers(graph, graph.tasks)
    used = [{block for task in run for block in (*task.reads, *task.writes)} & written for run in runs]
    last = {block: place for place, blocks in enumerate(used) for block in blocks}
    joined: list[Task] = []
    end = 0
    for place, run in enumerate(runs):
        joined += run
        end = max([end, *(last[block] for block in used[place])])
        if place >= end:
            yield joined
            joined = []
