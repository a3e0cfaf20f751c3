"""A framework's efficiency from the seconds of its iterations, and Caffe's memory in addition to a network's blocks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency
from membench.core.units import MIB
from membench.cost.roofline import ARITHMETIC_KINDS, RooflineCost
from membench.lab.calibrate.least_squares import Residual, four_digits, least_squares, left_out_errors
from membench.lab.calibrate.rows import BaselineRow

ITERATIONS = 20


def fit_times(
    rows: list[BaselineRow], graphs: dict[str, TaskGraph], device: DeviceProfile
) -> tuple[Efficiency, tuple[Residual, ...]]:
    """Return the efficiency, and how well each row is met.

    Seconds of a step = operations / (arithmetic * peak rate) + bytes / (memory * peak bandwidth)
                        + launch_s * tasks + step_s

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
        raise MembenchError("the fit gives the device an infinite rate; the reference rows contradict each other")
    rates = four_digits(1 / arithmetic), four_digits(1 / memory)
    return Efficiency(*rates, four_digits(launch_s), four_digits(step_s))


@dataclass(frozen=True)
class Memory:
    """Caffe's two constants of memory, its arguments of the same names, and how well each row is met."""

    context_bytes: int
    group_bytes: int
    residuals: tuple[Residual, ...]


@dataclass(frozen=True)
class MemoryRow:
    """A row of memory, and what determines it.

    Attributes:
        held_bytes: the peak of the row's system without the two constants.
        groups: groups of all convolutions.
    """

    row: BaselineRow
    held_bytes: int
    groups: int


def fit_memory(rows: list[MemoryRow]) -> Memory:
    """Fit Caffe's two constants.

    Bytes on the device = held_bytes + context_bytes + group_bytes * groups
    """
    terms = [[1.0, float(row.groups)] for row in rows]
    values = [row.row.value for row in rows]
    rest = [row.row.value - row.held_bytes / MIB for row in rows]
    context_bytes, group_bytes = (round(float(x) * MIB) for x in least_squares(terms, rest, scale=values))
    left_out = left_out_errors(terms, rest, scale=values)
    residuals = []
    for row, error in zip(rows, left_out, strict=True):
        fitted_bytes = row.held_bytes + context_bytes + group_bytes * row.groups
        residuals.append(Residual(row.row, fitted_bytes / MIB, error))
    return Memory(context_bytes, group_bytes, tuple(residuals))
