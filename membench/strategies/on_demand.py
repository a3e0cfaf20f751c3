"""Memory on demand: the order of a graph's own tasks, each block held from its first use to its last."""

from membench.planning.builder import ScheduleBuilder


def compute_on_demand(builder: ScheduleBuilder) -> None:
    """Run every task in the graph's order, and free what is dead after each."""
    for task in builder.graph.tasks:
        builder.compute(task)
        builder.free_dead()
