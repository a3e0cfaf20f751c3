"""Strategies whose weights visit the device and are updated on the host, for tests of host tasks."""

import random
from collections.abc import Iterable
from contextlib import suppress

from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import COPY_STREAM, Schedule
from membench.core.graph.task_graph import Phase, Role, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.deferred import defer_updates, deferred_updates
from membench.planning.rewrites.rewrite import update_on_host
from membench.strategies.base import Strategy


class HostUpdates(Strategy):
    """Prefetches what a task reads, offloads what an update on the host reads, and frees both.

    Args:
        synchronizes: all streams are waited for behind each update.
        deferred_share: see `defer_updates`.
    """

    name = "host updates"

    def __init__(self, synchronizes: bool = False, deferred_share: float = 0.0) -> None:
        self._synchronizes, self._deferred_share = synchronizes, deferred_share

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = defer_updates(update_on_host(graph), self._deferred_share)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        applied = {block for task in graph.tasks if task.on_host for block in task.reads}
        for task in graph.tasks:
            if task.on_host:
                _send(builder, task.reads)
            else:
                builder.prefetch_offloaded(task.reads)
            builder.compute(task)
            if task.on_host and self._synchronizes:
                builder.synchronize()
            _send(builder, applied.intersection(task.writes))
            for block in applied.intersection(task.reads):
                if builder.is_resident(block) and builder.is_on_host(block):
                    builder.free(block)
            builder.free_dead()
        return builder.finish()


class RandomUpdates(Strategy):
    """Some updates run on the host, some time after they can, in any order.

    Blocks leave, come back before they are needed or when they are, and are freed at random times.

    Args:
        rng: chooses.
        defers: how likely some of them are deferred.
    """

    name = "random updates"

    def __init__(self, rng: random.Random, defers: float = 0.5) -> None:
        self._rng, self._defers = rng, defers

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        updates = [task.index for task in graph.tasks if task.phase is Phase.UPDATE]
        chosen = self._rng.sample(updates, self._rng.randint(1, len(updates)))
        graph = update_on_host(graph, frozenset(chosen))
        if self._rng.random() < self._defers:
            with suppress(UnsupportedStrategy):  # it is one update alone
                graph = defer_updates(graph, self._rng.random())
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        moving = [block.index for block in graph.blocks if block.is_transient]
        due: list[Task] = []
        deferred = {task.index for task in deferred_updates(graph)}
        for task in graph.tasks:
            if task.index in deferred:
                self._update(builder, task)
            elif task.on_host:
                due.append(task)
            else:
                builder.prefetch_offloaded(task.reads, stream=self._copy_stream())
                builder.compute(task)
            self._rng.shuffle(due)
            while due and self._rng.random() < 0.3:
                self._update(builder, due.pop())
            if self._rng.random() < 0.8:
                builder.free_dead()
            self._move(builder, moving)
        for task in due:
            self._update(builder, task)
        _send(builder, (block.index for block in graph.blocks if block.role is Role.PENDING_GRADIENT))
        for block in filter(builder.is_resident, moving):
            builder.free(block)
        return builder.finish()

    def _copy_stream(self) -> str:
        return self._rng.choice([COPY_STREAM, "copies back"])

    def _update(self, builder: ScheduleBuilder, task: Task) -> None:
        """Run a task of the host; what it only reads may stay on the device."""
        _send(builder, task.writes)
        for block in task.reads:
            if builder.is_resident(block) and not builder.is_on_host(block):
                builder.offload(block)
        builder.compute(task)

    def _move(self, builder: ScheduleBuilder, blocks: list[int]) -> None:
        """Offload, free and prefetch some blocks."""
        for block in self._rng.sample(blocks, min(len(blocks), 6)):
            if builder.is_offloaded(block):
                builder.prefetch(block, stream=self._copy_stream())
            elif builder.is_resident(block) and not builder.is_on_host(block):
                builder.offload(block)
            elif builder.is_resident(block):
                builder.free(block)


def _send(builder: ScheduleBuilder, blocks: Iterable[int]) -> None:
    """Move blocks to the host."""
    for block in sorted(blocks):
        if builder.is_resident(block):
            if not builder.is_on_host(block):
                builder.offload(block)
            builder.free(block)
