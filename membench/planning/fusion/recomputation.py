"""Recomputation within kernels: the backward pass makes cheap results again from what is kept anyway.

    forward:   s = silu(g)    y = s * u                      s is kept for the backward pass beside g and u
    backward:  dg = silu_backward(dy * u, g)   du = dy * s   here s = silu(g) is part of the kernel that makes dy * s

As torch's min-cut partitioner decides (``torch._functorch.partitioners``, `min_cut_rematerialization_partition`), of
cheap operators alone, and one result at a time: it is computed again where that keeps fewer bytes in its place. Random
numbers are drawn once, and what a product or convolution of the backward pass reads is kept, because it would have to
be in memory.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

from membench.core.graph.changed_tasks import numbered, rename_blocks
from membench.core.graph.task_graph import AFTER_THE_LOSS, Block, Phase, Task, TaskGraph

MOST_RECOMPUTED = 16
"""The most operators that are run again for one result."""
_IN_KERNEL = " in a kernel"
"""In names. Strategies do not take these tasks for those that run again by a strategy's choice, or the program's."""


def recompute_in_kernels(
    graph: TaskGraph, region_of: Callable[[Task], object], is_cheap: Callable[[Task], bool]
) -> TaskGraph:
    """Return the graph in which tasks of the backward pass read copies of cheap results, made right before them.

    Args:
        region_of: tasks of the same region can be in one kernel; None: those in none.
        is_cheap: whether such a task may run again.
    """
    chosen = _Chosen(graph, region_of, is_cheap)
    blocks, tasks = list(graph.blocks), list[Task]()
    for task in graph.tasks:
        copies: dict[int, int] = {}
        again = chosen.again_for(task)
        for maker in again:
            [block] = maker.creates
            copies[block] = len(blocks)
            blocks.append(_copy(blocks[block], len(blocks), task.layer))
            tasks.append(rename_blocks(_in_backward(maker, task), copies))
        tasks.append(rename_blocks(task, copies))
    return replace(graph, blocks=tuple(blocks), tasks=numbered(tasks))


def _copy(block: Block, index: int, layer: int) -> Block:
    return replace(block, index=index, name=f"{block.name}{_IN_KERNEL}", layer=layer)


def _in_backward(maker: Task, reader: Task) -> Task:
    name = f"{maker.name}{_IN_KERNEL}"
    return replace(
        maker, name=name, phase=reader.phase, layer=reader.layer, gradient_of=reader.gradient_of, releases=()
    )


class _Chosen:
    """The blocks that are computed again, and how."""

    def __init__(self, graph: TaskGraph, region_of: Callable[[Task], object], is_cheap: Callable[[Task], bool]) -> None:
        self._graph, self._region_of = graph, region_of
        self._makers: dict[int, Task] = {}
        self._writes: defaultdict[int, list[int]] = defaultdict(list)
        self._made_in: dict[int, object] = {}
        self._outside: defaultdict[int, bool] = defaultdict(bool)  # tasks of another region read it
        readers: defaultdict[int, list[Task]] = defaultdict(list)
        for task in graph.tasks:
            for block in task.writes:
                self._writes[block].append(task.index)
            for block in task.reads:
                self._outside[block] |= region_of(task) != self._made_in.get(block)
            self._made_in.update(dict.fromkeys(task.creates, region_of(task)))
            if task.phase in AFTER_THE_LOSS:
                for block in task.reads:
                    readers[block].append(task)
            elif region_of(task) is not None and is_cheap(task) and task.writes == task.creates:
                self._makers.update((block, task) for block in task.creates if len(task.creates) == 1)
        self._kept = set(readers)
        self._blocks = {
            block
            for block, maker in self._makers.items()
            if readers[block]
            and graph.blocks[block].is_transient
            and self._writes[block] == [maker.index]
            and all(region_of(task) == region_of(maker) for task in readers[block])
        }
        self._kept -= self._blocks
        for block in sorted(self._blocks, key=lambda each: self._makers[each].index):
            cone = self._cone([block], readers[block][-1].index)
            added = None if cone is None else sum(map(self._weight, cone[1]))
            if added is None or added >= self._weight(block):
                self._blocks.remove(block)
                self._kept.add(block)
            else:
                assert cone is not None
                self._kept |= cone[1]

    def _weight(self, block: int) -> int:
        """Return the cost of keeping a block: twice its bytes where only that brings it into memory."""
        return self._graph.blocks[block].size_bytes * (1 if self._outside[block] else 2)

    def again_for(self, task: Task) -> list[Task]:
        """Return the tasks of the forward pass that run again for a task, in order."""
        if task.phase is not Phase.BACKWARD:
            return []
        wanted = [block for block in task.reads if block in self._blocks]
        cone = self._cone(wanted, task.index)
        assert cone is not None, "chosen blocks can be computed again for each reader"
        return [self._graph.tasks[index] for index in sorted(cone[0])]

    def _cone(self, blocks: list[int], position: int) -> tuple[set[int], set[int]] | None:
        """Return the tasks that compute blocks again, and the blocks that have to be kept for them in addition.

        Args:
            position: position of the task that needs them.

        Returns:
            None if a block that they read has been overwritten by then, or if they are too many.
        """
        tasks: set[int] = set()
        added: set[int] = set()
        pending = list(blocks)
        region = self._region_of(self._makers[blocks[0]]) if blocks else None
        while pending:
            maker = self._makers[pending.pop()]
            if maker.index in tasks:
                continue
            tasks.add(maker.index)
            for block in maker.reads:
                if any(maker.index < write < position for write in self._writes[block]):
                    return None
                if block in self._kept or not self._graph.blocks[block].is_transient:
                    continue
                if block in self._makers and self._region_of(self._makers[block]) == region:
                    pending.append(block)
                else:
                    added.add(block)
        return None if len(tasks) > MOST_RECOMPUTED else (tasks, added)
