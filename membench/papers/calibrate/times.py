"""A framework's efficiency from the seconds of its iterations.

Seconds of a step = operations / (arithmetic * peak rate) + bytes / (memory * peak bandwidth)
                    + launch_s * tasks + step_s
"""

import numpy as np
from numpy.typing import NDArray

from membench.core.device import DeviceProfile
from membench.core.efficiency import Efficiency
from membench.core.errors import MembenchError
from membench.core.task_graph import TaskGraph
from membench.cost.roofline import ARITHMETIC_KINDS, RooflineCost
from membench.papers.calibrate.least_squares import Residual, four_digits, least_squares, left_out_errors
from membench.papers.calibrate.rows import BaselineRow

ITERATIONS = 20


def fit_times(
    rows: list[BaselineRow], graphs: dict[str, TaskGraph], device: DeviceProfile
) -> tuple[Efficiency, tuple[Residual, ...]]:
    """Return the efficiency, and how well each row is met.

    Args:
        graphs: by the paper's name of the model, as the framework runs them.
        device: where all of the rows were measured.

    Raises:
        MembenchError: the rows contradict each other.
    """
    terms = [_time_terms(row, graphs[row.model], device) for row in rows]
    values = [row.value for row in rows]
    efficiency = _efficiency(least_squares(terms, values, scale=values))
    cost = RooflineCost(device, efficiency)
    residuals = []
    for row, left_out in zip(rows, left_out_errors(terms, values, scale=values), strict=True):
        tasks = graphs[row.model].tasks
        step_s = sum(cost.launch_time_s(task) + cost.task_time_s(task) for task in tasks)
        residuals.append(Residual(row, ITERATIONS * row.steps_per_iteration * step_s, left_out))
    return efficiency, tuple(residuals)


def _time_terms(row: BaselineRow, graph: TaskGraph, device: DeviceProfile) -> list[float]:
    """Return what each parameter multiplies: seconds at peak rates, tasks, steps."""
    operations = sum(task.operations for task in graph.tasks if task.kind in ARITHMETIC_KINDS)
    moved_bytes = sum(task.moved_bytes for task in graph.tasks if task.kind not in ARITHMETIC_KINDS)
    steps = ITERATIONS * row.steps_per_iteration
    at_peak_s = operations / device.arithmetic_ops_per_s, moved_bytes / device.memory_bytes_per_s
    return [steps * term for term in (*at_peak_s, len(graph.tasks), 1.0)]


def _efficiency(parameters: NDArray[np.float64]) -> Efficiency:
    arithmetic, memory, launch_s, step_s = (float(parameter) for parameter in parameters)
    if not (arithmetic and memory):
        raise MembenchError(
            "the fit gives the device an infinite rate; the reference rows contradict each other"
        )
    rates = four_digits(1 / arithmetic), four_digits(1 / memory)
    return Efficiency(*rates, four_digits(launch_s), four_digits(step_s))
