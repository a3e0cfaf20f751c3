"""A configured cell as a run that can be looked at."""

import os
from typing import Any

from membench.capture.capture import Captures
from membench.cost.measured import MeasuredCost
from membench.errors import UnsupportedStrategy
from membench.report.run import Run
from membench.report.summary import title
from membench.schedule import SubBatches
from membench.step import build_step
from membench.suite.baselines import baseline_of
from membench.suite.cell import Graphs, budget_bytes_of, planned_step, played_step, workload_of
from membench.suite.density import with_density
from membench.suite.measured import environment


def observe(configuration: dict[str, Any]) -> Run:
    """Play or run one step of a cell; see `run_cells` for the configuration. Of a step in parts, show the first.

    A simulated step that does not fit its device is played all the same: a picture shows by how much.

    Raises:
        MembenchError: the cell cannot run; says why.
    """
    if baseline_of(configuration):
        raise UnsupportedStrategy(
            "membench does not schedule this step, so nobody knows who holds what; choose a strategy, such as eager"
        )
    if configuration["backend"]["name"] == "simulated":
        played = played_step(configuration, planned_step(configuration, Graphs()))
        named = _title(configuration, played.plan[0])
        capacity_bytes = configuration["device"]["memory_bytes"]
        return Run(named, played.plan[0].schedule, played.timelines[0], capacity_bytes=capacity_bytes)
    os.environ.update(environment(configuration))  # before CUDA starts
    workload = workload_of(configuration)
    step = build_step(
        Captures(workload),
        with_density(configuration, workload),
        MeasuredCost(workload.inputs[0].device),
        budget_bytes_of(configuration),
        sub_batch=configuration.get("sub_batch"),
    )
    measurement = step.measure()
    step.close()
    first, timeline = step.plan[0], measurement.timelines[0]
    return Run(
        _title(configuration, first), first.schedule, timeline, measured_peak_bytes=measurement.peak_bytes
    )


def _title(configuration: dict[str, Any], part: SubBatches) -> str:
    whole, size = title(configuration), part.schedule.graph.batch_size
    return whole if size == int(configuration["batch_size"]) else f"{whole}, in parts of {size}"
