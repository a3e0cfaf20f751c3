"""Stages of a pipeline: which tasks of a micro-batch's step belong to each, and what passes between them."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from membench.core.errors import UnsupportedModel
from membench.core.graph.task_graph import AFTER_THE_LOSS, Role, Task, TaskGraph
from membench.core.step.pipeline import ActionKind, Pipeline, PipelineSchedule

Part = tuple[int, ActionKind]
"""A stage, and the kind of an action."""


class Stages:
    """A graph cut at modules: a task belongs to the stage of its layer, in the backward pass too.

    Where the backward pass is split, the gradients of a stage's inputs need the tasks without which they cannot be
    computed; all others are those of its weights.

    Args:
        graph: graph of one micro-batch.

    Attributes:
        used: blocks by the stage that uses them.
        tasks: by stage and kind of action, in the graph's order.
        received: blocks that an action waits for, by stage and kind of action.
        sent: blocks that others wait for, by stage and kind of the action that they follow.

    Raises:
        UnsupportedModel: no layer belongs to a module where a stage begins, two stages use one weight, or a value would
            have to pass against the order of the stages.
    """

    def __init__(self, graph: TaskGraph, pipeline: Pipeline) -> None:
        self._graph = graph
        self._begins = [self._first_layer(name) for name in pipeline.begins]
        self.is_split = pipeline.schedule is PipelineSchedule.ZERO_BUBBLE
        self.used: defaultdict[int, set[int]] = defaultdict(set)
        for task in graph.tasks:
            self.used[self._stage(task)].update(task.reads, task.writes)
        self.received: defaultdict[Part, list[int]] = defaultdict(list)
        self.sent: defaultdict[Part, list[int]] = defaultdict(list)
        self._check_weights()
        for task in graph.tasks:
            for block in task.creates:
                self._pass_on(block, task)

    @property
    def backward(self) -> ActionKind:
        """The part of the backward pass that other stages wait for."""
        return ActionKind.INPUT_GRADIENT if self.is_split else ActionKind.BACKWARD

    @cached_property
    def tasks(self) -> Mapping[Part, Sequence[Task]]:
        needed = self._needed_by_others()
        tasks: defaultdict[Part, list[Task]] = defaultdict(list)
        for task in self._graph.tasks:
            kind = ActionKind.FORWARD
            if task.phase in AFTER_THE_LOSS:
                is_later = self.is_split and task.index not in needed
                kind = ActionKind.WEIGHT_GRADIENT if is_later else self.backward
            tasks[self._stage(task), kind].append(task)
        for stage in range(len(self._begins) + 1):
            self._release_in([tasks[stage, kind] for kind in ActionKind])
        return tasks

    def _release_in(self, parts: Sequence[list[Task]]) -> None:
        """Let tasks free blocks where the program does, or at the stage's last use, if that is later or elsewhere."""
        program = {block: task.index for task in self._graph.tasks for block in task.releases}
        ordered = [task for part in parts for task in part]
        positions = {task.index: position for position, task in enumerate(ordered)}
        last: dict[int, int] = {}
        for position, task in enumerate(ordered):
            for block in (*task.reads, *task.writes):
                last[block] = position
        released: defaultdict[int, list[int]] = defaultdict(list)
        for block in program.keys() & last.keys():
            released[max(last[block], positions.get(program[block], 0))].append(block)
        for part in parts:
            part[:] = [replace(task, releases=tuple(sorted(released[positions[task.index]]))) for task in part]

    def passed(self, stage: int) -> frozenset[int]:
        """Return what a stage receives and sends."""
        parts = ((stage, ActionKind.FORWARD), (stage, self.backward))
        return frozenset(block for part in parts for block in (*self.received[part], *self.sent[part]))

    def _first_layer(self, name: str) -> int:
        first = first_layer(self._graph, name)
        if first is None:
            raise cannot_begin(name)
        return first

    def _stage(self, task: Task) -> int:
        return bisect_right(self._begins, task.layer)

    def _users(self, block: int) -> list[int]:
        return [stage for stage in range(len(self._begins) + 1) if block in self.used[stage]]

    def _check_weights(self) -> None:
        for block in self._graph.blocks:
            if block.role is Role.WEIGHT and len(users := self._users(block.index)) > 1:
                raise UnsupportedModel(
                    block.name,
                    f"stages {users[0]} and {users[-1]} of the pipeline both use it",
                    "give each a weight of its own, such as a head that is not tied to the embedding",
                )

    def _pass_on(self, block: int, made_by: Task) -> None:
        """Note the messages by which a block reaches the stages that use it, from neighbour to neighbour."""
        first, users = self._stage(made_by), self._users(block)
        is_backward = made_by.phase in AFTER_THE_LOSS
        last, against, step, kind = max(users), min(users), 1, ActionKind.FORWARD
        if is_backward:
            last, against, step, kind = min(users), max(users), -1, self.backward
        if against != first:
            raise UnsupportedModel(
                self._graph.blocks[block].name,
                f"stage {first} of the pipeline makes it, and stage {against}, which has run before, uses it",
                "cut the module elsewhere",
            )
        for stage in range(first, last, step):
            self.sent[stage, kind].append(block)
            self.received[stage + step, kind].append(block)

    def _needed_by_others(self) -> set[int]:
        """Return the tasks of the backward pass that what is sent back needs, and readers of what these overwrite."""
        wanted = {block for (_, kind), sent in self.sent.items() if kind is self.backward for block in sent}
        needed: set[int] = set()
        overwritten: set[int] = set()
        for task in reversed(self._graph.tasks):
            is_wanted = not (wanted.isdisjoint(task.writes) and overwritten.isdisjoint(task.reads))
            if task.phase in AFTER_THE_LOSS and is_wanted:
                needed.add(task.index)
                wanted.update(task.reads)
                overwritten.update(set(task.writes).difference(task.creates))
        return needed


def first_layer(graph: TaskGraph, name: str) -> int | None:
    """Return the first layer that belongs to a module; None: there is none."""
    layers = enumerate(graph.layers)
    return next((at for at, layer in layers if layer == name or layer.startswith(f"{name}.")), None)


def cannot_begin(name: str) -> UnsupportedModel:
    """Return the refusal of a pipeline of which a stage would begin with a module without layers of its own."""
    return UnsupportedModel(name, "a stage would begin with it, but it computes nothing", "cut the module elsewhere")
