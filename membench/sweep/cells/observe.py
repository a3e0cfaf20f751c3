"""A cell's step as a run to be drawn or traced."""

import os

from membench.backends.real import products_in, real_device
from membench.capture.capture import Captures
from membench.core.errors import UnsupportedStrategy
from membench.core.record import Configuration
from membench.pictures.observed_step import ObservedStep, timeline
from membench.planning.rewrites.update import updated_workload
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compile import build_step
from membench.steps.measurement import StepMeasurement
from membench.steps.simulated_step import cluster_step
from membench.sweep.cells.cell import Cell
from membench.sweep.cells.graphs import Graphs
from membench.sweep.cells.measured import environment
from membench.sweep.cells.simulated import planned_step
from membench.sweep.results.summary import title


def observe(configuration: Configuration) -> ObservedStep:
    """Play or run one step of a cell; see `Cell.from_configuration` for the configuration.

    Of micro-batches of one size, one is run with a clock and represents all. A simulated step that does not fit its
    device is played all the same: a picture shows by how much.

    Raises:
        MembenchError: the cell cannot run; the message says why.
    """
    os.environ.update(environment(configuration))  # before CUDA starts
    cell = Cell.from_configuration(configuration)
    if cell.method.baseline:
        raise UnsupportedStrategy(
            "membench does not schedule a baseline's step, so there is nothing to draw; choose a strategy, such as "
            "eager"
        )
    if cell.is_simulated:
        played = cluster_step(planned_step(cell, Graphs()), cell.cost, cell.cluster, cell.exchange)
        measurement, capacity_bytes = played.measure(), cell.simulated_device.memory_bytes
        return timeline(measurement, _title(configuration, measurement), capacity_bytes=capacity_bytes)
    with products_in(cell.precision):
        workload, device = cell.workload(cell.batch_size), real_device(cell.backend)
        step = build_step(
            Captures(updated_workload(workload, cell.optimizer), device),
            MeasuredCost(device),
            cell.request(cell.method.strategy_for(workload, device)),
        )
        measurement = step.measure()
        step.close()
    return timeline(measurement, _title(configuration, measurement))


def _title(configuration: Configuration, measurement: StepMeasurement) -> str:
    sizes = [run.schedule.graph.batch_size for run in measurement.plan for _ in range(run.count)]
    if len(sizes) == 1:
        return title(configuration)
    last = f", the last of {sizes[-1]}" if sizes[-1] != sizes[0] else ""
    return f"{title(configuration)}, in {len(sizes)} micro-batches of {sizes[0]}{last}"
