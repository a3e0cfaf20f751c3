"""A configured cell as a run that can be looked at."""

import os

from membench.backends.real import real_device
from membench.capture.capture import Captures
from membench.core.errors import UnsupportedStrategy
from membench.core.record import Configuration
from membench.core.schedule import RepeatedSchedule
from membench.core.timeline import Timeline
from membench.pictures.observed_step import ObservedStep, RepeatedRun
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compile import build_step
from membench.sweep.baselines import baseline_of
from membench.sweep.cell import Graphs, budget_bytes_of, planned_step, played_step, workload_of
from membench.sweep.density import with_density
from membench.sweep.measured import environment
from membench.sweep.summary import title


def observe(configuration: Configuration) -> ObservedStep:
    """Play or run one step of a cell; see `run_cells` for the configuration.

    Of micro-batches of one size, one is run with a clock and stands for all. A simulated step that does not fit its
    device is played all the same: a picture shows by how much.

    Raises:
        MembenchError: the cell cannot run; says why.
    """
    if baseline_of(configuration):
        raise UnsupportedStrategy(
            "membench does not schedule this step, so nobody knows who holds what; choose a strategy, such as eager"
        )
    if "study" in configuration:
        raise UnsupportedStrategy("a study runs no step that could be drawn; leave it out")
    if configuration["backend"]["name"] == "simulated":
        played = played_step(configuration, planned_step(configuration, Graphs()))
        capacity_bytes = configuration["device"]["memory_bytes"]
        return _run(configuration, played.plan, played.timelines, capacity_bytes=capacity_bytes)
    os.environ.update(environment(configuration))  # before CUDA starts
    workload, device = workload_of(configuration), real_device(configuration["backend"]["name"])
    step = build_step(
        Captures(workload, device),
        with_density(configuration, workload, device),
        MeasuredCost(device),
        budget_bytes_of(configuration),
        micro_batch=configuration.get("micro_batch"),
    )
    measurement = step.measure()
    step.close()
    return _run(configuration, step.plan, measurement.timelines, measured_peak_bytes=measurement.peak_bytes)


def _run(
    configuration: Configuration,
    plan: tuple[RepeatedSchedule, ...],
    timelines: tuple[Timeline, ...],
    **known_bytes: int,
) -> ObservedStep:
    runs = tuple(
        RepeatedRun(each.schedule, timeline, each.count)
        for each, timeline in zip(plan, timelines, strict=True)
    )
    sizes = [each.schedule.graph.batch_size for each in plan for _ in range(each.count)]
    named = title(configuration)
    if len(sizes) > 1:
        last = f", the last of {sizes[-1]}" if sizes[-1] != sizes[0] else ""
        named = f"{named}, in {len(sizes)} micro-batches of {sizes[0]}{last}"
    return ObservedStep(named, runs, **known_bytes)
