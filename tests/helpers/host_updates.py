"""A strategy whose weights visit the device and are updated on the host, for tests of host tasks."""

from collections.abc import Iterable

from membench.core.cost_model import CostModel
from membench.core.schedule import Schedule
from membench.core.task_graph import TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrite import update_on_host
from membench.strategies.base import Strategy


class HostUpdates(Strategy):
    """Prefetches what a task reads, offloads what an update on the host reads, and frees both."""

    name = "host updates"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = update_on_host(graph)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        applied = {block for task in graph.tasks if task.on_host for block in task.reads}
        for task in graph.tasks:
            if task.on_host:
                _send(builder, task.reads)
            else:
                builder.prefetch_offloaded(task.reads)
            builder.compute(task)
            _send(builder, applied.intersection(task.writes))
            for block in applied.intersection(task.reads):
                if builder.is_resident(block) and builder.is_on_host(block):
                    builder.free(block)
            builder.free_dead()
        return builder.finish()


def _send(builder: ScheduleBuilder, blocks: Iterable[int]) -> None:
    """Move blocks to the host."""
    for block in sorted(blocks):
        if builder.is_resident(block):
            if not builder.is_on_host(block):
                builder.offload(block)
            builder.free(block)
