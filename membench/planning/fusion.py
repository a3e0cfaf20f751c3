"""Fusion: tasks that a compiler runs as one become one task, whose call is a `Program`.

    conv   batch norm   add   relu   conv           conv   [batch norm, add, relu]   conv
           x        y        z     r         ->            x                     r

Grouped as `torch._inductor.scheduler` fuses: pointwise operators, reductions, normalizations, softmax and losses with the makers
of what they read, where no other task runs between them. Products, convolutions, pooling and indexing are tasks as before. What a
group makes and no other task reads is in no block.

A task stays alone if it draws random numbers, takes part in a collective, or writes to the caller's blocks (of which batch
norm's running statistics alone are exact in a program: a recomputed one leaves them out).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import torch

from membench.core.call import Call, Value, resolve_operator, values_in
from membench.core.program import BATCH_NORMS, Program, fused_call, renumbered
from membench.core.strides import view_of
from membench.core.task_graph import (
    EXTERNAL_ROLES,
    RESULT_ROLES,
    GradientOf,
    Kind,
    Phase,
    Task,
    TaskGraph,
    numbered,
)
from membench.planning.in_kernel import recompute_in_kernels


class Kernels(StrEnum):
    """What computes a step: PyTorch's operators one by one, or Inductor's kernels for groups of them."""

    EAGER = "eager"
    INDUCTOR = "inductor"


MOST_CALLS = 64
"""The most calls in a program: ``torch._inductor.config.max_fusion_size``."""

_POINTWISE = {
    "_to_copy", "copy_", "masked_fill_", "fill_", "zeros_like", "ones_like", "full_like", "threshold_backward", "hardtanh_backward",
    "hardswish_backward", "leaky_relu_backward", "elu_backward", "softplus_backward", "mse_loss_backward", "smooth_l1_loss_backward",
}  # fmt: skip
"""Operators that compute each element alone, without torch's tag for that."""

_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "var", "var_mean", "linalg_vector_norm", "_softmax", "_softmax_backward_data", "_log_softmax",
    "_log_softmax_backward_data", "native_batch_norm", "native_batch_norm_backward", "native_layer_norm",
    "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward",
    "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward", "mse_loss", "smooth_l1_loss",
}  # fmt: skip
"""Operators that Inductor computes by loops of its own, some of them reductions."""

_KINDS = (Kind.BATCH_NORM, Kind.NORMALIZATION, Kind.LOSS, Kind.SCALE, Kind.ACTIVATION, Kind.ADD)
"""Of these, the first that a group has is its kind. A ReLU or dropout within a group is not one that a method can replace."""


def fused(graph: TaskGraph) -> TaskGraph:
    """Return the graph with groups of tasks as one task each; the blocks keep their numbers.

    The graph is one of its own: it has no `TaskGraph.plain`.
    """
    graph = recompute_in_kernels(graph, lambda task: is_fusible(task, graph), is_pointwise)
    groups = _Groups(graph)
    for task in graph.tasks:
        groups.join(task)
    return replace(graph, tasks=numbered(groups.tasks()), plain=None)


def is_fusible(task: Task, graph: TaskGraph) -> bool:
    """Return whether a task can be part of a program."""
    call = task.call
    if call is None or task.random or task.collective or task.on_host or task.phase is Phase.UPDATE:
        return False
    if not call.operator.startswith("aten.") or not (_name(call) in _REDUCTIONS or is_pointwise(task)):
        return False
    updated = set(task.writes) - set(task.creates)
    if call.operator not in BATCH_NORMS and any(
        graph.blocks[block].role in EXTERNAL_ROLES for block in updated
    ):
        return False
    values = values_in((call.args, call.kwargs, call.outputs))
    if any(value.conjugated or value.negated or value.dtype.is_complex for value in values):
        return False
    outputs = [value for value in call.outputs if value is not None]
    makes_each = sorted(value.block for value in outputs) == sorted(task.creates)
    return makes_each and all(_fills(value, graph) for value in values if value.block in task.writes)


def is_pointwise(task: Task) -> bool:
    """Return whether a task computes each element alone."""
    call = task.call
    return call is not None and (
        _name(call) in _POINTWISE or torch.Tag.pointwise in resolve_operator(call).tags
    )


def _name(call: Call) -> str:
    return call.operator.split(".")[1]


def _fills(value: Value, graph: TaskGraph) -> bool:
    """Return whether a value is the whole of its block, or of a tensor of the caller."""
    block = graph.blocks[value.block]
    return not value.offset and value.extent_bytes == block.size_bytes and 0 not in value.stride


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


class _Groups:
    """The tasks of a graph in groups, in an order in which they can run; it changes only around groups that join."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._fusible = [is_fusible(task, graph) for task in graph.tasks]
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
        if not self._fusible[task.index]:
            return
        wanted = {*task.reads, *task.writes}
        earlier = [index for block in wanted for index in self._users[block] if index < task.index]
        makers = [index for index in earlier if wanted.intersection(self._graph.tasks[index].writes)]
        largest = _largest_read(task)
        sharers = [
            index
            for index in earlier
            if largest is not None and largest == _largest_read(self._graph.tasks[index])
        ]
        for index in (*sorted(makers, reverse=True), *sorted(sharers, reverse=True)):
            if self._fusible[index] and self._graph.tasks[index].phase is task.phase:
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

    def _joined_order(
        self, earlier: _Group, later: _Group
    ) -> tuple[list[_Group | None], list[_Group | None]] | None:
        """Return the groups between two that run before and after both of them; None if they have to stay apart.

        They do where a third one has to run after the one and before the other, and where more is held while those between
        them run: sums of gradients that come one after another would each wait for the last.
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
        """Return how many bytes more are held before a group than after it; results and the caller's blocks do not count.

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

    def _task(self, group: _Group) -> Task:
        if len(group.tasks) == 1 and not self._is_worth_it(group.tasks[0]):
            return group.tasks[0]
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

    def _is_worth_it(self, task: Task) -> bool:
        """Return whether a task alone is compiled: a pointwise operator is a single kernel as it is."""
        return self._fusible[task.index] and task.call is not None and _name(task.call) in _REDUCTIONS

    def _is_used_last(self, block: int, own: set[int]) -> bool:
        """Return whether no task reads what the group writes into a block that another task has made."""
        tasks = self._graph.tasks
        if self._graph.blocks[block].role in EXTERNAL_ROLES | RESULT_ROLES:
            return False
        writers = [user for user in self._users[block] if user in own and block in tasks[user].writes]
        is_made = any(block in tasks[user].creates for user in writers)
        return (
            bool(writers)
            and not is_made
            and all(user in own or user < writers[0] for user in self._users[block])
        )


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
        for queue in (["random"] if task.random else []) + (
            [task.collective.stream] if task.collective else []
        ):
            if queue in previous:
                yield previous[queue], task.index
            previous[queue] = task.index


# ---- one group as one task --------------------------------------------------------------------------


def is_expressible(tasks: Sequence[Task]) -> bool:
    """Return whether the values of what tasks make, or update, are tensors that one is a view of the other."""
    made: dict[int, Value] = {}
    taken: defaultdict[int, set[Value]] = defaultdict(set)
    written: set[int] = set()
    for task in tasks:
        assert task.call is not None
        for value in values_in((task.call.args, task.call.kwargs)):
            if value.block not in made:
                taken[value.block].add(value)
            elif view_of(made[value.block], value) is None:
                return False
        written.update(set(task.writes) - set(task.creates))
        made.update((value.block, value) for value in task.call.outputs if value is not None)
    is_single = all(len(taken[block]) == 1 for block in written - made.keys())
    of_made = (
        value
        for task in tasks
        if task.call
        for value in values_in(task.call.args)
        if value.block in written & made.keys()
    )
    return is_single and all(value == made[value.block] for value in of_made)


def fused_task(tasks: Sequence[Task], kept: set[int], dead: set[int]) -> Task:
    """Return the task that does what tasks do one after another.

    Args:
        kept: blocks that other tasks or the caller use.
        dead: blocks that no task uses afterwards.
    """
    numbers: dict[object, Value] = {}
    inputs: list[Value] = []
    made: dict[int, Value] = {}

    def of(value: Value) -> Value:
        if value.block in made:
            base = numbers[value.block].block
            return replace(value, block=base)
        if value not in numbers:
            numbers[value] = replace(value, block=len(numbers), offset=0)
            inputs.append(value)
        return numbers[value]

    calls = []
    for task in tasks:
        assert task.call is not None
        arguments = renumbered(replace(task.call, outputs=()), of)
        for value in task.call.outputs:
            if value is not None:
                made[value.block] = value
                numbers[value.block] = replace(value, block=len(numbers))
        calls.append(replace(arguments, outputs=tuple(value and of(value) for value in task.call.outputs)))
    outputs = [value for block, value in made.items() if block in kept]
    updated = {block for task in tasks for block in task.writes} - made.keys()
    scratch = tuple(numbers[value].block for value in inputs if value.block in updated & dead)
    program = Program(
        tuple(calls),
        tuple(numbers[value] for value in inputs),
        scratch,
        tuple(numbers[value.block].block for value in outputs),
    )
    creates = tuple(value.block for value in outputs)
    updates = [block for block in dict.fromkeys(value.block for value in inputs) if block in updated - dead]
    moved_bytes = sum(value.extent_bytes for value in (*inputs, *outputs))
    last = tasks[-1]
    return replace(
        last,
        name=last.name if len(tasks) == 1 else f"{last.name}:fused{len(tasks)}",
        kind=_kind(tasks),
        layer=max(task.layer for task in tasks),
        reads=tuple(dict.fromkeys(value.block for value in inputs)),
        writes=(*updates, *creates),
        creates=creates,
        operations=sum(task.operations for task in tasks),
        moved_bytes=moved_bytes,
        gradient_of=_gradient_of(tasks),
        call=fused_call(program, inputs, outputs),
    )


def _kind(tasks: Sequence[Task]) -> Kind:
    kinds = {task.kind for task in tasks}
    return next((kind for kind in _KINDS if kind in kinds), Kind.OTHER)


def _gradient_of(tasks: Sequence[Task]) -> GradientOf | None:
    halves = {task.gradient_of for task in tasks}
    return halves.pop() if len(halves) == 1 else GradientOf.DATA
