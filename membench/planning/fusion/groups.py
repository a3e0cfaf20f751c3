"""Groups of tasks that run as one, in an order in which they can run and hold no more than before."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from membench.core.graph.call import Value, values_in
from membench.core.graph.task_graph import EXTERNAL_ROLES, RESULT_ROLES, Task, TaskGraph
from membench.planning.fusion.operators import is_alone_compiled
from membench.planning.fusion.task import fused_task, is_expressible

MOST_CALLS = 64
"""The most calls in a program: ``torch._inductor.config.max_fusion_size``."""


@dataclass(slots=True, eq=False)
class _Group:
    """Tasks that run together, and the groups that have to run before and after them.

    Attributes:
        place: in the order of all groups.
    """

    tasks: list[Task]
    place: int
    before: set["_Group"] = field(default_factory=set)
    after: set["_Group"] = field(default_factory=set)


class Groups:
    """The tasks of a graph in groups, in an order in which they can run; it changes only around groups that join.

    Args:
        region_of: see `recompute_in_kernels`; only tasks of the same region join.
    """

    def __init__(self, graph: TaskGraph, region_of: Callable[[Task], object]) -> None:
        self._graph = graph
        self._regions = [region_of(task) for task in graph.tasks]
        self._of = [_Group([task], task.index) for task in graph.tasks]
        self._order: list[_Group | None] = [*self._of]
        for earlier, later in _orders(graph):
            self._of[earlier].after.add(self._of[later])
            self._of[later].before.add(self._of[earlier])
        self._users: defaultdict[int, list[int]] = defaultdict(list)
        for task in graph.tasks:
            for block in {*task.reads, *task.writes}:
                self._users[block].append(task.index)

    def join(self, task: Task) -> None:
        """Join a task with the groups that make what it reads, and then with those that read the most that it reads."""
        region = self._regions[task.index]
        if region is None:
            return
        wanted = {*task.reads, *task.writes}
        earlier = [index for block in wanted for index in self._users[block] if index < task.index]
        makers = [index for index in earlier if wanted.intersection(self._graph.tasks[index].writes)]
        largest = _largest_read(task)
        sharers = [
            index for index in earlier if largest is not None and largest == _largest_read(self._graph.tasks[index])
        ]
        for index in (*sorted(makers, reverse=True), *sorted(sharers, reverse=True)):
            if self._regions[index] == region and self._graph.tasks[index].phase is task.phase:
                self._join(self._of[index], self._of[task.index])

    def _join(self, one: _Group, other: _Group) -> None:
        if one is other or len(one.tasks) + len(other.tasks) > MOST_CALLS:
            return
        earlier, later = sorted((one, other), key=lambda group: group.place)
        order = self._joined_order(earlier, later)
        tasks = sorted((*earlier.tasks, *later.tasks), key=lambda task: task.index)
        if order is None or not is_expressible(tasks):
            return
        joined = _Group(tasks, 0, earlier.before | later.before, earlier.after | later.after)
        joined.before -= {earlier, later}
        joined.after -= {earlier, later}
        for group in joined.before:
            group.after -= {earlier, later}
            group.after.add(joined)
        for group in joined.after:
            group.before -= {earlier, later}
            group.before.add(joined)
        for task in tasks:
            self._of[task.index] = joined
        first, last = earlier.place, later.place
        leading, following = order
        ordered = [*leading, joined, *following]
        self._order[first : last + 1] = [*ordered, *[None] * (last + 1 - first - len(ordered))]
        for place in range(first, last + 1):
            if (moved := self._order[place]) is not None:
                moved.place = place

    def _joined_order(self, earlier: _Group, later: _Group) -> tuple[list[_Group | None], list[_Group | None]] | None:
        """Return the groups between two that run before and after both of them; None if they have to stay apart.

        They do where a third one has to run after the one and before the other, and where more is held while those
        between them run: sums of gradients that come one after another would each wait for the last.
        """
        between = [group for group in self._order[earlier.place + 1 : later.place] if group is not None]
        following, leading = {earlier}, {later}
        for group in between:
            if not following.isdisjoint(group.before):
                following.add(group)
        for group in reversed(between):
            if not leading.isdisjoint(group.after):
                leading.add(group)
        if following & leading:
            return None
        may_wait = self._held_bytes(earlier, later) <= 0
        may_hurry = self._held_bytes(later, earlier) >= 0
        has_others = len(between) > len(following) + len(leading) - 2
        if (len(leading) > 1 or (has_others and not may_hurry)) and not may_wait:
            return None
        if len(following) > 1 and not may_hurry:
            return None
        is_first = leading.__contains__ if not may_wait else lambda group: group not in following
        first = [group for group in between if is_first(group)]
        return [*first], [group for group in between if not is_first(group)]

    def _held_bytes(self, group: _Group, other: _Group) -> int:
        """Return how many bytes more are held before a group than behind it, without results and the caller's blocks.

        Args:
            other: a group that runs with it: what one makes and only the other one reads is not held between them.
        """
        own = {task.index for task in group.tasks}
        both = own.union(task.index for task in other.tasks)
        last = max(own)
        created = {block for task in group.tasks for block in task.creates}
        touched = {block for task in group.tasks for block in (*task.reads, *task.writes)}
        held_bytes = 0
        for block in (self._graph.blocks[block] for block in touched):
            users = self._users[block.index]
            if not block.is_transient:
                continue
            if block.index in created:
                held_bytes -= block.size_bytes * any(user not in own for user in users)
            else:
                held_bytes += block.size_bytes * all(user in both or user < last for user in users)
        return held_bytes

    def tasks(self) -> list[Task]:
        """Return the tasks of all groups in order."""
        return [self._task(group) for group in self._order if group is not None]

    def positions(self) -> list[int]:
        """Return for each task of the graph the position of its group among `tasks`."""
        ordered = {id(group): at for at, group in enumerate(filter(None, self._order))}
        return [ordered[id(group)] for group in self._of]

    def _task(self, group: _Group) -> Task:
        first = group.tasks[0]
        if len(group.tasks) == 1 and self._regions[first.index] is None:
            return first
        if len(group.tasks) == 1 and not is_alone_compiled(first):
            return replace(first, workspace_bytes=0) if first.workspace_bytes else first
        own = {task.index for task in group.tasks}
        roles = EXTERNAL_ROLES | RESULT_ROLES
        touched = {block for task in group.tasks for block in (*task.reads, *task.writes)}
        kept = {
            block
            for block in touched
            if self._graph.blocks[block].role in roles or any(user not in own for user in self._users[block])
        }
        dead = touched - kept
        dead |= {block for block in kept if self._is_used_last(block, own)}
        return fused_task(group.tasks, kept, dead)

    def _is_used_last(self, block: int, own: set[int]) -> bool:
        """Return whether no task reads what the group writes into a block that another task has made."""
        tasks = self._graph.tasks
        if self._graph.blocks[block].role in EXTERNAL_ROLES | RESULT_ROLES:
            return False
        writers = [user for user in self._users[block] if user in own and block in tasks[user].writes]
        is_made = any(block in tasks[user].creates for user in writers)
        return bool(writers) and not is_made and all(user in own or user < writers[0] for user in self._users[block])


def _largest_read(task: Task) -> Value | None:
    values = values_in((task.call.args, task.call.kwargs)) if task.call else []
    return max(values, key=lambda value: value.extent_bytes, default=None)


def _orders(graph: TaskGraph) -> Iterable[tuple[int, int]]:
    """Yield pairs of tasks of which the second may not run before the first."""
    writer: dict[int, int] = {}
    readers: defaultdict[int, list[int]] = defaultdict(list)
    previous: dict[object, int] = {}
    for task in graph.tasks:
        for block in {*task.reads, *task.writes}:
            if block in writer:
                yield writer[block], task.index
        for block in task.writes:
            yield from ((reader, task.index) for reader in readers[block] if reader != task.index)
            writer[block], readers[block] = task.index, []
        for block in task.reads:
            readers[block].append(task.index)
        for queue in (["random"] if task.random else []) + ([task.collective.stream] if task.collective else []):
            if queue in previous:
                yield previous[queue], task.index
            previous[queue] = task.index
