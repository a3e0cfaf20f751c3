"""One cell of an experiment: a configuration goes in, a record comes out, whatever happens."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from membench.capture.capture import CapturedStep, capture
from membench.configuration import instantiate
from membench.cost.measured import MeasuredCpuCost
from membench.cost.roofline import RooflineCost
from membench.device import DeviceProfile
from membench.errors import InfeasibleSchedule, OutOfMemory, UnsupportedModel, UnsupportedStrategy
from membench.frameworks.base import Framework
from membench.planning.liveness import peak_bytes
from membench.record import Outcome, Record, Source, configuration_hash
from membench.schedule import Schedule
from membench.step import StepMeasurement, build_step, check_capacity, plan, simulated_step
from membench.strategies.base import Strategy
from membench.task_graph import Role, TaskGraph
from membench.units import parse_bytes
from membench.workload import Workload

MAP_ROLES = frozenset({Role.ACTIVATION, Role.GRADIENT})
"""What Layrub's Figures 9 to 11 count: activations and their gradients, nothing that a layer holds inside."""

_OUTCOMES: dict[type[Exception], Outcome] = {
    OutOfMemory: Outcome.OUT_OF_MEMORY,
    InfeasibleSchedule: Outcome.INFEASIBLE,
    UnsupportedModel: Outcome.UNSUPPORTED,
    UnsupportedStrategy: Outcome.UNSUPPORTED,
}


def run_cell(configuration: dict[str, Any]) -> Record:
    """Run one cell; see `run_cells`."""
    return next(run_cells([configuration]))


def run_cells(configurations: Iterable[dict[str, Any]]) -> Iterator[Record]:
    """Run cells one after another; neighbours of one model, batch size and framework share their graph.

    Args:
        configurations: resolved, as plain dicts: ``model`` (name, module, loss, input_shape, classes),
            ``batch_size``, ``strategy``, ``framework``, ``device``, ``backend`` (name), ``seed``, ``budget``.
    """
    graphs = _Graphs()
    for configuration in configurations:
        yield _run(configuration, graphs)


class _Graphs:
    """The graph captured last, so that cells of one model and batch size capture once."""

    def __init__(self) -> None:
        self._key: Any = None
        self._workload: Workload | None = None
        self._captured: CapturedStep | None = None
        self._lowered: dict[str, TaskGraph] = {}

    def captured(self, configuration: dict[str, Any]) -> tuple[Workload, CapturedStep]:
        key = configuration_hash({k: configuration[k] for k in ("model", "batch_size", "backend", "seed")})
        if key != self._key or self._workload is None or self._captured is None:
            self._workload = workload_of(configuration)
            self._captured, self._lowered, self._key = capture(self._workload), {}, key
        return self._workload, self._captured

    def lowered(self, configuration: dict[str, Any], framework: Framework) -> TaskGraph:
        _, captured = self.captured(configuration)
        key = configuration_hash(configuration["framework"])
        if key not in self._lowered:
            self._lowered[key] = framework.lower(captured.graph)
        return self._lowered[key]


def workload_of(configuration: dict[str, Any]) -> Workload:
    """Build the model and an example batch: on the meta device to be simulated, for real to be run."""
    model, batch_size = configuration["model"], int(configuration["batch_size"])
    is_simulated = configuration["backend"]["name"] == "simulated"
    torch.manual_seed(int(configuration["seed"]))
    with torch.device("meta" if is_simulated else "cpu"):
        module, loss = instantiate(model["module"]), instantiate(model["loss"])
        inputs = torch.randn(batch_size, *model["input_shape"])
        targets = torch.randint(int(model["classes"]), (batch_size,))
    return Workload(model["name"], module, loss, (inputs,), (targets,))


def _run(configuration: dict[str, Any], graphs: _Graphs) -> Record:
    is_simulated = configuration["backend"]["name"] == "simulated"
    source = Source.SIMULATED if is_simulated else Source.MEASURED
    metrics: dict[str, float] = {}
    outcome, reason = Outcome.OK, ""
    try:
        if is_simulated:
            _simulate(configuration, graphs, metrics)
        else:
            _measure_on_cpu(configuration, graphs, metrics)
    except Exception as error:  # a cell's failure is its record; it never ends a sweep
        outcome = _OUTCOMES.get(type(error), Outcome.FAILED)
        reason = str(error) if outcome is not Outcome.FAILED else f"{type(error).__name__}: {error}"
    return Record(configuration, configuration_hash(configuration), source, outcome, reason, metrics)


def _simulate(configuration: dict[str, Any], graphs: _Graphs, metrics: dict[str, float]) -> None:
    device: DeviceProfile = instantiate(configuration["device"])
    framework: Framework = instantiate(configuration["framework"])
    strategy: Strategy = instantiate(configuration["strategy"])
    graph = graphs.lowered(configuration, framework)
    cost = RooflineCost(device, framework.efficiency)
    schedule = plan(graph, strategy, cost, _budget_bytes(configuration))
    metrics.update(_memory_metrics(schedule), capacity_bytes=device.memory_bytes)
    measurement = simulated_step(schedule, device, cost).measure()
    metrics.update(oracular_step_time_s=measurement.step_time_s)
    check_capacity(schedule, device)
    metrics.update(_time_metrics(measurement))


def _measure_on_cpu(configuration: dict[str, Any], graphs: _Graphs, metrics: dict[str, float]) -> None:
    workload, captured = graphs.captured(configuration)
    strategy: Strategy = instantiate(configuration["strategy"])
    step = build_step(workload, captured, strategy, MeasuredCpuCost(), _budget_bytes(configuration))
    measurement = step.measure()
    metrics.update(_memory_metrics(step.schedule))
    metrics.update(_time_metrics(measurement), measured_peak_memory_bytes=measurement.peak_bytes)


def _memory_metrics(schedule: Schedule) -> dict[str, float]:
    graph = schedule.graph
    return {
        "peak_memory_bytes": schedule.peak_bytes,
        "map_memory_bytes": peak_bytes(schedule, MAP_ROLES),
        "activation_memory_bytes": peak_bytes(schedule, frozenset({Role.ACTIVATION})),
        "weight_bytes": sum(block.size_bytes for block in graph.blocks if block.role is Role.WEIGHT),
        "lower_bound_bytes": graph.lower_bound_bytes,
        "overhead_bytes": graph.overhead_bytes,
        "operations": sum(task.operations for task in graph.tasks),
        "tasks": len(graph.tasks),
    }


def _time_metrics(measurement: StepMeasurement) -> dict[str, float]:
    return {
        "average_memory_bytes": measurement.average_bytes,
        "step_time_s": measurement.step_time_s,
        "images_per_s": measurement.images_per_s,
        "compute_time_s": measurement.compute_time_s,
        "exposed_transfer_s": measurement.exposed_transfer_s,
        "offloaded_bytes": measurement.offloaded_bytes,
        "prefetched_bytes": measurement.prefetched_bytes,
        "unique_saved_bytes": measurement.unique_saved_bytes,
    }


def _budget_bytes(configuration: dict[str, Any]) -> int | None:
    budget = configuration.get("budget")
    return None if budget is None else parse_bytes(budget)
