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
from heapq import heapify, heappop, heappush

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
    groups = _Groups(graph)
    for task in graph.tasks:
        groups.join_makers(task)
    return replace(graph, tasks=numbered(groups.tasks()), plain=None)


def is_fusible(task: Task, graph: TaskGraph) -> bool:
    """Return whether a task can be part of a program."""
    call = task.call
    if call is None or task.random or task.collective or task.on_host or task.phase is Phase.UPDATE:
        return False
    if not call.operator.startswith("aten.") or not _computes(call):
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


def _computes(call: Call) -> bool:
    return _name(call) in _POINTWISE | _REDUCTIONS or torch.Tag.pointwise in resolve_operator(call).tags


def _name(call: Call) -> str:
    return call.operator.split(".")[1]


def _fills(value: Value, graph: TaskGraph) -> bool:
    """Return whether a value is the whole of its block, or of a tensor of the caller."""
    block = graph.blocks[value.block]
    return not value.offset and value.extent_bytes == block.size_bytes and 0 not in value.stride


@dataclass(slots=True, eq=False)
class _Group:
    """Tasks that run where the last of them did."""

    tasks: list[Task]
    before: set["_Group"] = field(default_factory=set)
    after: set["_Group"] = field(default_factory=set)

    @property
    def first(self) -> int:
        return self.tasks[0].index

    @property
    def last(self) -> int:
        return self.tasks[-1].index


class _Groups:
    """The tasks of a graph in groups, of which none has to run both before and after another."""

    def __init__(self, graph: TaskGraph) -> None:
        self._graph = graph
        self._fusible = [is_fusible(task, graph) for task in graph.tasks]
        self._of = [_Group([task]) for task in graph.tasks]
        for earlier, later in _orders(graph):
            self._of[earlier].after.add(self._of[later])
            self._of[later].before.add(self._of[earlier])
        self._users: defaultdict[int, list[int]] = defaultdict(list)
        for task in graph.tasks:
            for block in {*task.reads, *task.writes}:
                self._users[block].append(task.index)

    def join_makers(self, task: Task) -> None:
        """Join a task with the groups that make what it reads, the latest first."""
        if not self._fusible[task.index]:
            return
        wanted = {*task.reads, *task.writes}
        makers = {
            group
            for group in self._of[task.index].before
            if self._fusible[group.last] and any(wanted.intersection(each.writes) for each in group.tasks)
        }
        for maker in sorted(makers, key=lambda group: -group.last):
            self._join(maker, self._of[task.index])

    def _join(self, earlier: _Group, later: _Group) -> None:
        tasks = sorted((*earlier.tasks, *later.tasks), key=lambda task: task.index)
        if len(tasks) > MOST_CALLS or len({task.phase for task in tasks}) > 1:
            return
        if _is_reached(earlier, later) or not is_expressible(tasks):
            return
        joined = _Group(
            tasks,
            (earlier.before | later.before) - {earlier, later},
            (earlier.after | later.after) - {earlier, later},
        )
        for group in joined.before:
            group.after -= {earlier, later}
            group.after.add(joined)
        for group in joined.after:
            group.before -= {earlier, later}
            group.before.add(joined)
        for task in tasks:
            self._of[task.index] = joined

    def tasks(self) -> list[Task]:
        """Return the tasks of all groups in an order in which they can run, close to the graph's."""
        groups = dict.fromkeys(self._of)
        waiting = {group: len(group.before) for group in groups}
        ready = [(group.last, group.first) for group in groups if not group.before]
        heapify(ready)
        found: list[Task] = []
        while ready:
            group = self._of[heappop(ready)[0]]
            found.append(self._task(group))
            for other in group.after:
                waiting[other] -= 1
                if not waiting[other]:
                    heappush(ready, (other.last, other.first))
        assert len(found) == len(groups), "groups wait for each other"
        return found

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


def _is_reached(earlier: _Group, later: _Group) -> bool:
    """Return whether a third group has to run after the one and before the other."""
    pending = [group for group in earlier.after if group is not later]
    seen = set(pending)
    while pending:
        group = pending.pop()
        for other in group.after - seen:
            if other is later:
                return True
            if other.first <= later.last:
                seen.add(other)
                pending.append(other)
    return False


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
