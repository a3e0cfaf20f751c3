"""Micro-batches: a batch computed in parts that fit in memory, with gradients accumulated (moDNN, Section 5)."""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.algorithms import Preference, prefer

GraphAt = Callable[[int], TaskGraph]
"""The graph of a step, or of a micro-batch of it, at a number of samples."""

FITTED = "fitted"
"""The word for the largest micro-batch that fits by Equation 8."""

FASTEST = "fastest"
"""The word for the micro-batch with which a step takes the least time."""

WINDOW = 0.15
"""The paper's alpha: the fraction of all tasks that must fit at a time."""

_STEP = 64
"""Above it, micro-batches are multiples of it; below it, powers of two."""


def fitted_sizes(graph_at: GraphAt, batch_size: int, cost: CostModel, budget_bytes: int | None) -> Iterator[int]:
    """Yield the largest regular micro-batch whose windows of tasks fit the budget (Equation 8), then smaller ones.

    The smaller ones are for schedules that need more than a window: vDNN+ keeps prefetched blocks, a pool has gaps. The
    paper profiles at a micro-batch, chooses again and repeats until the choice is stable. Here a graph is profiled at
    each size that is considered, so the choice is stable at once.
    """

    def fits(size: int) -> bool:
        if budget_bytes is None:
            return True
        return window_bytes(prefer(graph_at(size), cost, Preference.PERFORMANCE)) <= budget_bytes

    sizes = regular_sizes(batch_size)
    # bisection for the largest one that fits; the smallest is tried in any case
    first, last = 0, len(sizes) - 1
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if fits(sizes[middle]) else (middle + 1, last)
    yield from sizes[first:]


def sizes_around(
    graph_at: GraphAt, batch_size: int, cost: CostModel, budget_bytes: int | None
) -> tuple[list[int], list[int]]:
    """Return the micro-batches down to the one of Equation 8, and those below it.

    Equation 8 counts everything that a window of tasks touches, though not all of it is held at once: larger ones may
    fit as well. Smaller ones launch more tasks for the same work.
    """
    fitted = list(fitted_sizes(graph_at, batch_size, cost, budget_bytes))
    sizes = regular_sizes(batch_size)
    return sizes[: len(sizes) - len(fitted) + 1], fitted[1:]


def regular_sizes(batch_size: int) -> list[int]:
    """Return the whole batch and the regular micro-batches below it, the largest first.

    The paper rounds to multiples of 64 above 64, to multiples of 32 above 32, and so on; that is, to powers of two
    below. The direction is not stated: here down, because a budget is a limit.
    """
    largest = (batch_size - 1) // _STEP * _STEP
    powers = [1 << exponent for exponent in range(_STEP.bit_length()) if 1 << exponent < batch_size]
    return [batch_size, *range(largest, _STEP, -_STEP), *reversed(powers)]


def micro_batch_size(given: int | str, batch_size: int) -> int:
    """Return the micro-batch that a user has given.

    Raises:
        MembenchError: it is not a number of samples from 1 to the batch size.
    """
    try:
        size = 0 if isinstance(given, float | bool) else int(given)
    except ValueError:
        size = 0
    if not 1 <= size <= batch_size:
        raise MembenchError(
            f"micro_batch={given!r} is not a part of a batch of {batch_size}; give a number of samples from 1 to "
            f"{batch_size}, {FITTED!r} for the largest that fits by moDNN's rule, or {FASTEST!r} for the one that "
            "takes the least time"
        )
    return size


def window_bytes(graph: TaskGraph, window: float = WINDOW) -> int:
    """Return the most bytes that a window of tasks needs: blocks, largest workspace, and all that stays.

    Equation 8, with the workspace that the text names and the printed equation lacks. A window has the fraction
    `window` of the tasks, rounded down, and at least one. Gradients of weights, the paper's weight increments, are held
    from the start.
    """
    size_bytes = [block.size_bytes if block.is_transient else 0 for block in graph.blocks]
    length = max(1, int(window * len(graph.tasks)))
    workspaces = np.array([0] * (length - 1) + [task.workspace_bytes for task in graph.tasks])
    largest_workspace = sliding_window_view(workspaces, length).max(axis=1).tolist()
    touched: Counter[int] = Counter()
    in_window_bytes = worst_bytes = 0
    for position, task in enumerate(graph.tasks):
        for block in {*task.reads, *task.writes}:
            in_window_bytes += 0 if touched[block] else size_bytes[block]
            touched[block] += 1
        if position >= length:
            left = graph.tasks[position - length]
            for block in {*left.reads, *left.writes}:
                touched[block] -= 1
                in_window_bytes -= 0 if touched[block] else size_bytes[block]
        worst_bytes = max(worst_bytes, in_window_bytes + largest_workspace[position])
    return worst_bytes + graph.external_bytes + graph.result_bytes
