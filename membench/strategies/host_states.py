"""States of training in host memory: blocks that leave and visit, and updates on the processor."""

from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from membench.capture.dissolve import is_of_state
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.task_graph import AFTER_THE_LOSS, STATE_ROLES, Role, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.deferred import defer_updates, deferred_updates
from membench.planning.rewrites.rewrite import keep_on_host, update_on_host

DEEPSPEED_BUCKET_BYTES = 100_000_000
"""Gradients that a device holds while they leave: 5e7 in half precision, DeepSpeed's ``reduce_bucket_size``."""


def states_on_host(graph: TaskGraph, deferred_share: float = 0.0) -> TaskGraph:
    """Return the graph with weights, gradients' sums and optimizer states at home in host memory and updated there.

    What the step returns stays on the device.

    Args:
        deferred_share: see `defer_updates`.

    Raises:
        UnsupportedStrategy: it returns gradients that it has applied, which leave the device; or see `defer_updates`.
    """
    graph = update_on_host(keep_on_host(graph, STATE_ROLES, updated=True))
    if any(graph.blocks[block].role is Role.WEIGHT_GRADIENT for block in applied_gradients(graph)):
        raise UnsupportedStrategy(
            "gradients='freed_late' keeps gradients on the device behind the update, and this method offloads them as "
            "they are made; leave it out"
        )
    return defer_updates(graph, deferred_share)


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

    def free_others(self) -> None:
        """Free what is dead and does not leave."""
        leaving = {block for block, _ in self._sizes_bytes}
        for block in self._builder.dead_blocks():
            if block not in leaving:
                self._builder.free(block)

    def free_now(self, blocks: Iterable[int]) -> None:
        """Free those of these blocks that are still on the device, before their turn."""
        for block in blocks:
            if self._builder.is_resident(block) and self._builder.is_on_host(block):
                self._builder.free(block)

    def finish(self) -> None:
        """Free all that have not been freed."""
        while self._sizes_bytes:
            self._free()

    def _free(self) -> None:
        block, size_bytes = self._sizes_bytes.popleft()
        self._held_bytes -= size_bytes
        self.free_now([block])  # unless it has been freed or written meanwhile


class Visits:
    """Blocks of host memory that are on the device only while tasks need them, behind their deferred updates.

    Args:
        tasks: those before the update, in order.
        at_home: blocks whose home is in host memory.
        kept: further blocks, which die on the device.
        ahead: tasks that use such blocks for which they are brought before they are needed.
        reuse_bytes: a block stays if its next use is no more bytes of such blocks away.
    """

    def __init__(
        self,
        builder: ScheduleBuilder,
        tasks: Sequence[Task],
        at_home: Collection[int],
        kept: Collection[int],
        ahead: int,
        reuse_bytes: int,
    ) -> None:
        self._builder, self._ahead, self._reuse_bytes = builder, ahead, reuse_bytes
        wanted = {*at_home, *kept}
        used = [sorted(wanted.intersection((*task.reads, *task.writes))) for task in tasks]
        self._used = {task.index: blocks for task, blocks in zip(tasks, used, strict=True) if blocks}
        self._users = list(self._used)
        self._due = defaultdict[int, list[Task]](list)  # deferred updates, by the task before which they are issued
        first_user = {block: index for index, blocks in reversed(self._used.items()) for block in blocks}
        for update in deferred_updates(builder.graph):
            self._due[min(first_user[block] for block in update.writes if block in first_user)].append(update)
        self._at_home = frozenset(at_home)
        sizes_bytes = (builder.graph.size_bytes(blocks) for blocks in self._used.values())
        self._used_bytes = dict(zip(self._users, accumulate(sizes_bytes), strict=True))
        self._uses: dict[int, list[int]] = {}
        for index, blocks in self._used.items():
            for block in blocks:
                self._uses.setdefault(block, []).append(index)

    def begin(self, task: Task) -> None:
        """Bring what a task and the next ones use."""
        first = bisect_left(self._users, task.index)
        for index in self._users[first : first + 1 + self._ahead]:
            for update in self._due.pop(index, ()):
                self._builder.compute(update)
            self._builder.prefetch_offloaded(self._used[index])

    def end(self, task: Task, leaving: Leaving) -> None:
        """Give back what the next uses are far from."""
        for block in self._used.get(task.index, ()):
            if block in self._at_home and self._builder.is_resident(block) and self._is_far(task, block):
                if self._builder.is_on_host(block):
                    self._builder.free(block)
                else:
                    leaving.send([block])

    def _is_far(self, task: Task, block: int) -> bool:
        uses = self._uses[block]
        following = uses[bisect_right(uses, task.index) :]
        if not following:
            return True
        between = bisect_right(self._users, following[0] - 1) - bisect_right(self._users, task.index)
        before = self._users[bisect_right(self._users, following[0] - 1) - 1]
        distance_bytes = self._used_bytes[before] - self._used_bytes[task.index]
        return between > self._ahead and distance_bytes > self._reuse_bytes


def checkpoints(graph: TaskGraph) -> frozenset[int]:
    """Return the activations that the forward pass makes and the program's recomputation starts from."""
    made, read = set[int](), set[int]()
    for task in graph.tasks:
        if task.is_recomputed:
            read.update(task.reads)
        elif task.phase not in AFTER_THE_LOSS and not is_of_state(task):
            made.update(task.creates)
    return frozenset(block for block in made & read if graph.blocks[block].role is Role.ACTIVATION)


def compute_as_written(builder: ScheduleBuilder, task: Task) -> None:
    """Run a task on the device, once what it reads is there, and give back what its program gives back after it."""
    builder.prefetch_offloaded(task.reads)
    builder.compute(task)
    for block in task.releases:
        if builder.is_resident(block) and builder.is_dead(block):
            builder.free(block)


def update(builder: ScheduleBuilder, tasks: Iterable[Task]) -> None:
    """Run tasks of the update behind the backward pass, once everything before it has finished.

    Clipping and the test for overflows in half precision need all gradients, so that no update is earlier.
    """
    builder.synchronize()
    for task in tasks:
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


def updates_behind(parts: Sequence[Sequence[Task]], updates: Sequence[Task]) -> list[list[Task]]:
    """Return for each part of the passes the updates of which it is the last to use a block.

    Updates of one block stay in order.
    """
    last = {b: place for place, tasks in enumerate(parts) for task in tasks for b in (*task.reads, *task.writes)}
    due: list[list[Task]] = [[] for _ in parts]
    for task in updates:
        touched = (*task.reads, *task.writes)
        place = max(last.get(block, 0) for block in touched)
        due[place].append(task)
        last |= dict.fromkeys(touched, place)
    return due
