"""Micro-batches layer by layer: one graph of a step in which a layer computes all micro-batches before the next does.

    one after another:  all layers of micro-batch 0 | all layers of 1 | ...
    layer by layer:     layer 1 of 0, of 1, of 2 | layer 2 of 2, of 1, of 0 | layer 3 of 0, of 1, of 2 | ...

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

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby

from membench.core.errors import UnsupportedStrategy
from membench.core.graph.changed_tasks import numbered, rename_blocks
from membench.core.graph.task_graph import ARGUMENT_ROLES, EXTERNAL_ROLES, Role, Task, TaskGraph
from membench.core.step.optimizer import Gradients, UpdateOf

_SHARED = EXTERNAL_ROLES - ARGUMENT_ROLES
"""Roles of blocks that all micro-batches use together."""

_PREFIX = "micro-batch "
"""Begins the names of tasks and layers of a micro-batch, also in a pipeline."""

# ---- the order of a graph ------------------------------------------------------------------------


def layer_by_layer(graph: TaskGraph) -> TaskGraph:
    """Return a graph of several micro-batches in the order of layers.

    Args:
        graph: has the tasks of all micro-batches, without messages between devices and without the update.
    """
    return graph.map(lambda each: replace(each, tasks=numbered(in_order_of_layers(each, each.tasks))))


def check_draws_nothing(graph: TaskGraph) -> None:
    """Refuse a graph of which micro-batches layer by layer would compute something else than one after another.

    Raises:
        UnsupportedStrategy: it draws random numbers, which would be drawn in another order.
    """
    random = next((task for task in graph.tasks if task.random), None)
    if random:
        raise UnsupportedStrategy(
            f"{graph.layers[random.layer]!r} draws random numbers, which micro-batches layer by layer would draw in "
            "another order than one after another; set its probability to 0, compute the whole batch at once, or "
            "choose a strategy without that order"
        )


def in_order_of_layers(graph: TaskGraph, tasks: Iterable[Task]) -> list[Task]:
    """Return tasks of several micro-batches in the order of layers; those of one micro-batch stay in their order."""
    return [task for parts in _layers(graph, tasks) for task in chain.from_iterable(parts)]


def _layers(graph: TaskGraph, of_step: Iterable[Task]) -> Iterator[list[list[Task]]]:
    """Yield the tasks of each layer in each pass, of one micro-batch after another in the order of their computation.

    Layers that use the same block that several micro-batches write are one here, such as a module with statistics that
    is called twice: both calls write them for a micro-batch before the next.
    """
    own: defaultdict[str, list[Task]] = defaultdict(list)
    for task in of_step:
        own[_micro_batch(task)].append(task)
    written = _written_by_several(own.values())
    runs = list(zip(*(runs_of_layers(graph, tasks) for tasks in own.values()), strict=True))
    used = [_touched(chain.from_iterable(parts)) & written for parts in runs]
    last = {block: place for place, blocks in enumerate(used) for block in blocks}
    joined: list[list[Task]] = [[] for _ in own]
    end, is_forwards = 0, False
    for place, parts in enumerate(runs):
        for tasks, part in zip(joined, parts, strict=True):
            tasks += part
        end = max([end, *(last[block] for block in used[place])])
        if place >= end:
            is_forwards = not is_forwards or bool(_touched(chain.from_iterable(joined)) & written)
            yield joined if is_forwards else joined[::-1]
            joined = [[] for _ in own]


def _written_by_several(micro_batches: Iterable[Sequence[Task]]) -> set[int]:
    """Return the blocks that more than one micro-batch writes."""
    counts = Counter(block for tasks in micro_batches for block in {b for task in tasks for b in task.writes})
    return {block for block, count in counts.items() if count > 1}


def _touched(tasks: Iterable[Task]) -> set[int]:
    return {block for task in tasks for block in (*task.reads, *task.writes)}


def runs_of_layers(graph: TaskGraph, tasks: Iterable[Task]) -> list[tuple[Task, ...]]:
    """Return tasks as runs of consecutive ones of one layer, whichever micro-batches they compute."""
    named = [_layer_of(name) for name in graph.layers]
    if not any(named):  # no lists of modules
        named = [_without_prefix(name) for name in graph.layers]
    return [tuple(run) for _, run in groupby(tasks, lambda task: named[task.layer])]


def runs_of_micro_batches(tasks: Iterable[Task]) -> list[tuple[Task, ...]]:
    """Return tasks as runs of consecutive ones of one micro-batch."""
    return [tuple(run) for _, run in groupby(tasks, _micro_batch)]


def _layer_of(module: str) -> str:
    """Return the name of the entry of a list of modules to which a module belongs; empty: to none."""
    parts = _without_prefix(module).split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
    return "" if number is None else ".".join(parts[: number + 1])


def _micro_batch(task: Task) -> str:
    return task.name.partition(": ")[0] if task.name.startswith(_PREFIX) else ""


def _without_prefix(name: str) -> str:
    return name.partition(": ")[2] if name.startswith(_PREFIX) else name


# ---- one graph of several micro-batches ----------------------------------------------------------


def together(graph: TaskGraph, micro_batches: int) -> TaskGraph:
    """Return one graph of several micro-batches, one after another, whose update is not in it yet.

    Args:
        graph: graph of one, which adds its gradients and its loss to accumulators.
    """
    return graph if micro_batches == 1 else graph.map(lambda each: _together(each, micro_batches))


def _together(graph: TaskGraph, micro_batches: int) -> TaskGraph:
    own = [block for block in graph.blocks if block.role not in _SHARED]
    blocks, tasks, layers, copies = list(graph.blocks), list[Task](), list[str](), list[dict[int, int]]()
    for number in range(micro_batches):
        prefix, first_layer = f"{_PREFIX}{number}: ", len(layers)
        start = len(blocks)
        renamed = {block.index: start + place if number else block.index for place, block in enumerate(own)}
        for block in own:
            copy = replace(
                block,
                index=renamed[block.index],
                name=f"{prefix}{block.name}",
                layer=block.layer if block.layer < 0 else first_layer + block.layer,
                repeats=block.repeats if block.repeats is None else renamed.get(block.repeats, block.repeats),
            )
            blocks[copy.index : copy.index + 1] = [copy]
        tasks += (
            rename_blocks(
                task,
                renamed,
                name=f"{prefix}{task.name}",
                layer=first_layer + task.layer,
                releases=tuple(renamed.get(block, block) for block in task.releases),
            )
            for task in graph.tasks
        )
        layers += (f"{prefix}{name}" for name in graph.layers)
        copies.append(renamed)
    return replace(
        graph,
        batch_size=graph.batch_size * micro_batches,
        blocks=tuple(blocks),
        tasks=numbered(tasks),
        layers=tuple(layers),
        parts=tuple(tuple(renamed[block.index] for renamed in copies) for block in own if block.role in ARGUMENT_ROLES),
    )


def with_own_sums(graph: TaskGraph, update_of: UpdateOf) -> TaskGraph:
    """Return a whole step of several micro-batches whose sums of gradients are made in it, if its update frees them.

    The first micro-batch's gradient takes the place of the accumulator, which would be zero.
    """
    frees = graph.parts and update_of(graph).gradients is Gradients.FREED
    return graph.map(_with_own_sums) if frees else graph


def _with_own_sums(graph: TaskGraph) -> TaskGraph:
    sums = {value.block: name for name, value in graph.gradients if value}
    additions = {
        total: task
        for task in reversed(graph.tasks)
        for total in task.writes
        if total in sums and task.call is not None
    }
    firsts = Counter(_added(task) for task in additions.values())
    renamed = {
        _added(task): total
        for total, task in additions.items()
        if firsts[_added(task)] == 1 and graph.last_use[_added(task)] == task.index
    }
    blocks = list(graph.blocks)
    for first, total in renamed.items():
        layer, name = blocks[first].layer, f"{sums[total]}:gradient"
        blocks[total] = replace(blocks[total], name=name, role=Role.WEIGHT_GRADIENT, layer=layer)
    dropped = {additions[total].index for total in renamed.values()}
    tasks = (
        rename_blocks(task, renamed, releases=tuple(block for block in task.releases if block not in renamed))
        for task in graph.tasks
        if task.index not in dropped
    )
    return replace(graph, blocks=tuple(blocks), tasks=numbered(tasks))


def _added(addition: Task) -> int:
    """Return the block that is added to an accumulator."""
    [added] = set(addition.reads) - set(addition.writes)
    return added
