"""Choice of convolution algorithms, where the device offers several."""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from operator import attrgetter

from membench.core.graph.convolution import Algorithm
from membench.core.graph.task_graph import Task, TaskGraph
from membench.core.hardware.cost_model import CostModel


class Preference(StrEnum):
    """The least workspace or the least time: (m) and (p) behind a method's name in vDNN and Layrub."""

    MEMORY = "memory"
    PERFORMANCE = "performance"


def choose_algorithms(
    graph: TaskGraph, cost: CostModel, choose: Callable[[Task, tuple[Algorithm, ...]], Algorithm]
) -> TaskGraph:
    """Return the graph with an algorithm and its workspace in each convolution.

    Args:
        choose: returns one of a task's algorithms, which it gets with the fastest first.
    """

    def chosen(task: Task) -> Task:
        if task.convolution is None:
            return task
        algorithm = choose(task, cost.algorithms(task))
        return replace(task, algorithm=algorithm.name, workspace_bytes=algorithm.workspace_bytes)

    return replace(graph, tasks=tuple(map(chosen, graph.tasks)))


def prefer(graph: TaskGraph, cost: CostModel, preference: Preference) -> TaskGraph:
    """Return the graph with the fastest algorithms, or with those that need the least workspace."""
    if preference is Preference.PERFORMANCE:
        return choose_algorithms(graph, cost, lambda _, algorithms: algorithms[0])
    least = attrgetter("workspace_bytes")
    return choose_algorithms(graph, cost, lambda _, algorithms: min(algorithms, key=least))
