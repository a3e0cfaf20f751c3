"""A framework's efficiency from the seconds of its iterations, and Caffe's memory in addition to a network's blocks."""

from dataclasses import dataclass, replace

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


def fit_times(
    rows: list[BaselineRow], graphs: dict[str, TaskGraph], device: DeviceProfile, given: Efficiency
) -> tuple[Efficiency, tuple[Residual, ...]]:
    """Return the efficiency, and how well each row is met.

    Seconds of a step = products at the peak rate / arithmetic + other tasks at the peak bandwidth / memory
                        + launch_s * tasks + step_s

    Args:
        graphs: by the paper's name of the model, as the framework runs them.
        device: where all of the rows were measured.
        given: what is not fitted, such as `Efficiency.half_waves`; its own four constants do not matter.

    Raises:
        MembenchError: the rows contradict each other.
    """
    at_peak = RooflineCost(device, replace(given, arithmetic=1.0, memory=1.0))
    terms = [_time_terms(row, graphs[row.model], at_peak) for row in rows]
    values = [row.value for row in rows]
    efficiency = _efficiency(given, least_squares(terms, values, scale=values))
    cost = RooflineCost(device, efficiency)
    residuals = []
    for row, left_out in zip(rows, left_out_errors(terms, values, scale=values), strict=True):
        tasks = graphs[row.model].tasks
        step_s = sum(cost.launch_time_s(task) + cost.task_time_s(task) for task in tasks)
        residuals.append(Residual(row, row.steps * step_s, left_out))
    return efficiency, tuple(residuals)


def _time_terms(row: BaselineRow, graph: TaskGraph, at_peak: RooflineCost) -> list[float]:
    """Return what each parameter multiplies: seconds at peak rates, tasks, steps."""
    products_s = sum(at_peak.task_time_s(task) for task in graph.tasks if task.kind in ARITHMETIC_KINDS)
    moving_s = sum(at_peak.task_time_s(task) for task in graph.tasks if task.kind not in ARITHMETIC_KINDS)
    return [row.steps * term for term in (products_s, moving_s, len(graph.tasks), 1.0)]


def _efficiency(given: Efficiency, parameters: NDArray[np.float64]) -> Efficiency:
    arithmetic, memory, launch_s, step_s = (float(parameter) for parameter in parameters)
    if not (arithmetic and memory):
        raise MembenchError("the fit gives the device an infinite rate; the reference rows contradict each other")
    return replace(
        given,
        arithmetic=four_digits(1 / arithmetic),
        memory=four_digits(1 / memory),
        launch_s=four_digits(launch_s),
        step_s=four_digits(step_s),
    )


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
        held_bytes: the peak of the row's system without the two constants, and what the card holds without a process.
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
