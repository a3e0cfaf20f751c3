"""Number of CPU threads with which a network trains.

An operator of a small network takes less time than threads take to share it; on a machine with other work, many threads
are then tens of times slower than one. The number follows from the network and the processors alone, not from a clock,
so that a training can be repeated to the bit.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from membench.core.graph.task_graph import TaskGraph

OPERATIONS_PER_THREAD = 10**8
"""Of a task, on average: a few milliseconds of a thread; sharing work takes a few hundredths of one. Assumed."""

USER_S_VARIABLE = "OMP_NUM_THREADS"


def threads_for(graph: TaskGraph, available: int) -> int:
    """Return the number of threads for a step: one for each `OPERATIONS_PER_THREAD` of its average task.

    Args:
        available: torch's number; where `USER_S_VARIABLE` is set, the user has chosen it, and it is returned.
    """
    if USER_S_VARIABLE in os.environ:
        return available
    operations = sum(task.operations for task in graph.tasks) // len(graph.tasks)
    return max(1, min(available, operations // OPERATIONS_PER_THREAD))


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Compute with that many threads within, and with the previous number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
