"""States of training in host memory, as several methods have them: blocks that leave and visit, updates on the processor."""

from collections import deque
from collections.abc import Iterable

from membench.core.task_graph import Phase, Role, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrite import keep_on_host, update_on_host

STATES = frozenset({Role.WEIGHT, Role.OPTIMIZER_STATE, Role.ACCUMULATED})

DEEPSPEED_BUCKET_BYTES = 100_000_000
"""Gradients that a device holds while they leave: 5e7 in half precision, ``reduce_bucket_size`` of DeepSpeed's script for ZeRO-Offload."""


def states_on_host(graph: TaskGraph) -> TaskGraph:
    """Return the graph with weights, gradients' sums and the optimizer's states at home in host memory, and updated there.

    What the step returns stays on the device.
    """
    return update_on_host(keep_on_host(graph, STATES, updated=True))


def applied_gradients(graph: TaskGraph) -> frozenset[int]:
    """Return the blocks that updates on the host read and whose home is not there: gradients."""
    read = {block for task in graph.tasks if task.on_host for block in task.reads}
    return frozenset(block for block in read if graph.blocks[block].host_location is None)


class Leaving:
    """Blocks that leave the device while it computes.

    A block is freed once others of `most_bytes` have left behind it, so that tasks seldom wait for copies.
    """

    def __init__(self, builder: ScheduleBuilder, most_bytes: int) -> None:
        self._builder = builder
        self._most_bytes = most_bytes
        self._sizes_bytes: deque[tuple[int, int]] = deque()
        self._held_bytes = 0

    def send(self, blocks: Iterable[int]) -> None:
        """Copy resident blocks to the host if their copies there are not valid, and free them when it is their turn."""
        for block in sorted(blocks):
            if not self._builder.is_resident(block):
                continue
            if not self._builder.is_on_host(block):
                self._builder.offload(block)
            size_bytes = self._builder.graph.blocks[block].size_bytes
            self._sizes_bytes.append((block, size_bytes))
            self._held_bytes += size_bytes
        while self._held_bytes > self._most_bytes:
            self._free()

    def finish(self) -> None:
        """Free all that have not been freed."""
        while self._sizes_bytes:
            self._free()

    def _free(self) -> None:
        block, size_bytes = self._sizes_bytes.popleft()
        self._held_bytes -= size_bytes
        self._builder.free(block)


def compute_as_written(builder: ScheduleBuilder, task: Task) -> None:
    """Run a task on the device, once what it reads is there, and give back what its program gives back after it."""
    builder.prefetch_offloaded(task.reads)
    builder.compute(task)
    for block in task.releases:
        if builder.is_resident(block) and builder.is_dead(block):
            builder.free(block)


def update(builder: ScheduleBuilder) -> None:
    """Run the update behind the backward pass, once everything before it has finished.

    Clipping and the test for overflows in half precision need all gradients, so that no update is earlier.
    """
    builder.synchronize()
    for task in builder.graph.tasks:
        if task.phase is Phase.UPDATE:
            if not task.on_host:
                builder.prefetch_offloaded(task.reads)
            builder.compute(task)
            builder.free_dead()


def last_touched_by(tasks: Iterable[Task], blocks: frozenset[int]) -> dict[int, list[int]]:
    """Return by task those of the blocks that no later one of the tasks touches."""
    last = {block: task.index for task in tasks for block in blocks.intersection((*task.reads, *task.writes))}
    found: dict[int, list[int]] = {}
    for block, task in last.items():
        found.setdefault(task, []).append(block)
    return found
