"""One cell of an experiment: a configuration goes in, a record comes out, whatever happens."""

import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from membench.backends.real import real_device
from membench.capture.capture import Captures
from membench.core.checks import choice
from membench.core.cluster import Cluster
from membench.core.configuration import instantiate
from membench.core.device import DeviceProfile
from membench.core.distributed import joined
from membench.core.errors import (
    InfeasibleSchedule,
    MembenchError,
    OutOfMemory,
    UnsupportedModel,
    UnsupportedStrategy,
)
from membench.core.record import Configuration, Outcome, Record, Source, configuration_hash
from membench.core.schedule import RepeatedSchedule
from membench.core.task_graph import TaskGraph
from membench.core.units import parse_bytes
from membench.core.workload import Workload, share_size
from membench.cost.roofline import RooflineCost
from membench.frameworks.base import Framework
from membench.frameworks.pytorch import PyTorch
from membench.planning.exchange import Exchange, exchange_in_last_run
from membench.planning.micro_batch import GraphAt
from membench.steps.plan import plan_step
from membench.steps.simulated_step import SimulatedStep, check_capacity, simulated_step
from membench.strategies.base import Strategy
from membench.sweep.baselines import baseline_of
from membench.sweep.density import is_measured, with_density
from membench.sweep.measured import CellMeasurement, measure_baseline, measure_strategy
from membench.sweep.metrics import Metrics, layer_metrics, oracular_metrics, plan_metrics, time_metrics
from membench.sweep.power import power_metrics
from membench.sweep.provenance import device_facts, provenance

MEASURED_SAMPLES = 8
"""On how many samples, at most, a simulated cell measures densities."""

_OUTCOMES: dict[type[Exception], Outcome] = {
    OutOfMemory: Outcome.OUT_OF_MEMORY,
    InfeasibleSchedule: Outcome.INFEASIBLE,
    UnsupportedModel: Outcome.UNSUPPORTED,
    UnsupportedStrategy: Outcome.UNSUPPORTED,
    MemoryError: Outcome.OUT_OF_MEMORY,
    torch.OutOfMemoryError: Outcome.OUT_OF_MEMORY,
}


def run_cell(configuration: Configuration) -> Record:
    """Run one cell; see `run_cells`."""
    return next(run_cells([configuration]))


def run_cells(configurations: Iterable[Configuration]) -> Iterator[Record]:
    """Run cells one after another; neighbours of one model, batch size and framework share their graph.

    Args:
        configurations: resolved, as plain dicts: ``model`` (name, module, loss, and see `example_batch`),
            ``batch_size``, ``strategy``, ``framework``, ``device``, ``backend`` (name), ``seed``, ``budget``, ``micro_batch``,
            ``exchange``, and to be simulated ``cluster``. Of several processes or devices, each runs its share of the batch.
    """
    graphs = Graphs()
    for configuration in configurations:
        yield _run(configuration, graphs)


class Graphs:
    """What was captured last, so that cells of one model and batch size capture once."""

    def __init__(self) -> None:
        self._key: Any = None
        self._captures: Captures | None = None
        self._lowered: dict[tuple[str, int], TaskGraph] = {}

    def captures(self, configuration: Configuration) -> Captures:
        key = configuration_hash({k: configuration[k] for k in ("model", "batch_size", "backend", "seed")})
        if key != self._key or self._captures is None:
            processes = joined()
            workload = workload_of(configuration).share(processes.rank, processes.count)
            device = device_of(configuration)
            self._captures, self._lowered, self._key = Captures(workload, device), {}, key
        return self._captures

    def lowered_at(self, configuration: Configuration, framework: Framework) -> GraphAt:
        captures = self.captures(configuration)
        name = configuration_hash(configuration["framework"])

        def graph_at(size: int) -> TaskGraph:
            if (name, size) not in self._lowered:
                self._lowered[name, size] = _lower(framework, captures.graph_at(size))
            return self._lowered[name, size]

        return graph_at


def _lower(framework: Framework, graph: TaskGraph) -> TaskGraph:
    lowered = framework.lower(graph)
    if lowered.mode is not graph.mode:
        cause = f"framework {framework.name!r} runs no step of {graph.mode}"
        raise UnsupportedModel(graph.name, cause, "choose framework=pytorch")
    return lowered


def workload_of(configuration: Configuration) -> Workload:
    """Build the model and an example batch: on the meta device to be simulated, on the CPU to be run anywhere.

    A model without a loss is there for inference.
    """
    model, batch_size = configuration["model"], int(configuration["batch_size"])
    torch.manual_seed(int(configuration["seed"]))
    with torch.device("meta" if configuration["backend"]["name"] == "simulated" else "cpu"):
        module, loss = instantiate(model["module"]), instantiate(model["loss"])
        inputs, targets = example_batch(model, batch_size)
    if loss is None:
        return Workload(model["name"], module.eval(), None, (inputs,))
    return Workload(model["name"], module, loss, (inputs,), (targets,))


def device_of(configuration: Configuration) -> torch.device | None:
    """Return where a cell's step runs; None: it is simulated.

    Raises:
        MembenchError: it needs a GPU, and there is none.
    """
    backend = configuration["backend"]["name"]
    return None if backend == "simulated" else real_device(backend)


def example_batch(model: dict[str, Any], batch_size: int) -> tuple[Tensor, Tensor]:
    """Return random inputs and targets for a configured model.

    An input has ``input_shape`` and holds real numbers, or tokens if the model has a ``vocabulary``. A target is one of
    ``classes``; in a model with a ``target_shape``, such as one per time step, that many of them.
    """
    input_shape, vocabulary = (batch_size, *model["input_shape"]), model.get("vocabulary")
    inputs = torch.randint(vocabulary, input_shape) if vocabulary else torch.randn(input_shape)
    return inputs, torch.randint(model["classes"], (batch_size, *model.get("target_shape", ())))


def _run(configuration: Configuration, graphs: Graphs) -> Record:
    is_simulated = configuration["backend"]["name"] == "simulated"
    source = Source.SIMULATED if is_simulated else Source.MEASURED
    found = CellMeasurement()
    layers: Metrics = {}
    outcome, reason = Outcome.OK, ""
    try:
        if is_simulated:
            _simulate(configuration, graphs, found.metrics, layers)
        else:
            found = _measure(configuration, graphs)
    except Exception as error:  # a cell's failure is its record; it never ends a sweep
        outcome, reason = outcome_of(error)
    backend = configuration["backend"]["name"]
    return Record(
        configuration,
        configuration_hash(configuration),
        source,
        outcome,
        reason,
        found.metrics,
        layer_metrics=layers,
        samples=found.samples,
        absent=found.absent,
        provenance={} if is_simulated else _provenance(backend),
    )


def outcome_of(error: Exception) -> tuple[Outcome, str]:
    """Return how a run ended that raised an error, and why."""
    outcome = _OUTCOMES.get(type(error), Outcome.FAILED)
    if outcome is Outcome.FAILED and not isinstance(error, MembenchError):
        traceback.print_exception(error)
        *_, last = traceback.extract_tb(error.__traceback__)
        return outcome, f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
    return outcome, str(error) or "the machine's memory is used up"


def _provenance(backend: str) -> dict[str, Any]:
    """Return where and with what a measured cell ran; a device that is not there has no facts."""
    try:
        return provenance() | device_facts(backend)
    except MembenchError:
        return provenance()


def _simulate(configuration: Configuration, graphs: Graphs, metrics: Metrics, layers: Metrics) -> None:
    """Play a cell. What is known is added to `metrics` and `layers` at once: of a step that does not fit, that remains."""
    device: DeviceProfile = instantiate(configuration["device"])
    cluster: Cluster = instantiate(configuration["cluster"])
    if "study" in configuration:
        rows, columns = int(configuration["batch_size"]), configuration["model"]["input_shape"][0]
        metrics.update(instantiate(configuration["study"]).metrics(rows, columns, _cost(configuration)))
        return
    local = planned_step(configuration, graphs)
    step = played_step(configuration, local)
    metrics.update(plan_metrics(step.plan), capacity_bytes=device.memory_bytes, devices=cluster.devices)
    metrics.update(oracular_metrics(step.plan, step.timelines, device))
    layers.update(layer_metrics(step.plan[0].schedule, step.timelines[0]))
    check_capacity(step.plan, device)
    measured = step.measure()
    metrics.update(time_metrics(measured))
    if cluster.devices > 1:
        alone = simulated_step(local, _cost(configuration))
        metrics["local_step_time_s"] = alone.step_time_s
    if device.power:  # of one device
        images_per_s = measured.images_per_s / cluster.devices
        metrics.update(power_metrics(step.plan, step.timelines, device.power, images_per_s=images_per_s))
    metrics.update(
        peak_memory_bytes=step.predicted_peak_bytes,
        feature_images_per_s=metrics["oracular_feature_images_per_s"],
    )


def planned_step(configuration: Configuration, graphs: Graphs) -> tuple[RepeatedSchedule, ...]:
    """Plan a simulated cell's step on one device's share of the batch, before any exchange with others."""
    framework: Framework = instantiate(configuration["framework"])
    strategy: Strategy = _simulated_strategy(configuration, framework)
    cluster: Cluster = instantiate(configuration["cluster"])
    share = share_size(int(configuration["batch_size"]), cluster.devices)
    return plan_step(
        graphs.lowered_at({**configuration, "batch_size": share}, framework),
        share,
        strategy,
        _cost(configuration),
        budget_bytes_of(configuration),
        configuration.get("micro_batch"),
    )


def _simulated_strategy(configuration: Configuration, framework: Framework) -> Any:
    """Return a cell's strategy; densities that it asks for are measured on this machine, on a few samples."""
    if not is_measured(configuration):
        return instantiate(configuration["strategy"])
    if not isinstance(framework, PyTorch):
        raise UnsupportedStrategy(
            f"framework {framework.name!r} has other maps than those that can be measured; choose framework=pytorch, or "
            "give a density"
        )
    few = min(int(configuration["batch_size"]), MEASURED_SAMPLES)
    on_cpu = {**configuration, "batch_size": few, "backend": {"name": "cpu"}}
    return with_density(on_cpu, workload_of(on_cpu), torch.device("cpu"))


def played_step(configuration: Configuration, local: tuple[RepeatedSchedule, ...]) -> SimulatedStep:
    """Play a plan on the cell's devices, whether they have the memory or not."""
    cluster: Cluster = instantiate(configuration["cluster"])
    parts = local
    if cluster.devices > 1:
        parts = exchange_in_last_run(local, choice(Exchange, "exchange", configuration["exchange"]))
    return simulated_step(parts, _cost(configuration), cluster)


def _cost(configuration: Configuration) -> RooflineCost:
    cluster: Cluster = instantiate(configuration["cluster"])
    framework: Framework = instantiate(configuration["framework"])
    return RooflineCost(cluster.loaded(instantiate(configuration["device"])), framework.efficiency)


def _measure(configuration: Configuration, graphs: Graphs) -> CellMeasurement:
    if "study" in configuration:
        raise UnsupportedStrategy(
            "a study of synthetic maps is simulated; benchmarks/codecs.py times codecs here"
        )
    baseline, budget_bytes = baseline_of(configuration), budget_bytes_of(configuration)
    if baseline:
        if joined().count > 1:
            raise UnsupportedStrategy("a baseline runs alone: start it without torchrun")
        device = real_device(configuration["backend"]["name"])
        return measure_baseline(baseline, workload_of(configuration).to(device), budget_bytes)
    return measure_strategy(configuration, graphs.captures(configuration), budget_bytes)


def budget_bytes_of(configuration: Configuration) -> int | None:
    budget = configuration.get("budget")
    return None if budget is None else parse_bytes(budget)
