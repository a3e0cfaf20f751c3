"""Choice of convolution algorithms, where the device offers several."""

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from membench.core.convolution import Algorithm
from membench.core.cost_model import CostModel
from membench.core.task_graph import Task, TaskGraph


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
    return replace(graph, tasks=tuple(_chosen(task, cost, choose) for task in graph.tasks))


def prefer(graph: TaskGraph, cost: CostModel, preference: Preference) -> TaskGraph:
    """Return the graph with the fastest algorithms, or with those that need the least workspace."""
    if preference is Preference.PERFORMANCE:
        return choose_algorithms(graph, cost, lambda _, algorithms: algorithms[0])
    return choose_algorithms(graph, cost, lambda _, algorithms: min(algorithms, key=_workspace_bytes))


def _workspace_bytes(algorithm: Algorithm) -> int:
    return algorithm.workspace_bytes


def _chosen(task: Task, cost: CostModel, choose: Callable[[Task, tuple[Algorithm, ...]], Algorithm]) -> Task:
    if task.convolution is None:
        return task
    chosen = choose(task, cost.algorithms(task))
    return replace(task, algorithm=chosen.name, workspace_bytes=chosen.workspace_bytes)
