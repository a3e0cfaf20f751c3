"""Prediction of published rows with one step: it is captured once, and priced on each row's device."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from torch import nn

from membench.core import configuration
from membench.core.checks import choice
from membench.core.configuration import instantiate
from membench.core.errors import InfeasibleSchedule, MembenchError, one_line
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import GradientOf, Task, TaskGraph
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.device import DeviceProfile, as_device
from membench.core.hardware.machine import Machine
from membench.core.record import Configuration
from membench.core.step.kernels import Kernels
from membench.core.step.optimizer import WeightUpdate
from membench.lab.validation.predictions import RowPrediction
from membench.lab.validation.rows import LARGEST, QUANTITIES, Row
from membench.steps.arguments import as_update, in_process
from membench.steps.parallel.ranks import ONE_RANK, Ranks, ranks_of
from membench.steps.predict import Predictor
from membench.steps.predicted.breakdown import OperatorTime, operator_times
from membench.steps.predicted.prediction import Prediction
from membench.steps.request import StepRequest
from membench.strategies.base import Strategy, find_strategy
from membench.sweep.cells.model import Model

_ROOMY_BYTES = 2**60

STRATEGY = "pytorch"
"""That of rows whose data set names none."""


def predict_rows(rows: Sequence[Row]) -> list[RowPrediction]:
    """Predict rows that differ only in their device.

    A row that cannot be predicted has the reason instead: a network that does not exist any more is not an error of its
    data set, and any exception of a foreign network is one of that network.
    """
    first = rows[0]
    if first.reason:
        return [RowPrediction(reason=first.reason) for _ in rows]
    try:
        at_batch = predictor_of(first.step)
        timed = predictor_of(first.timed) if first.timed else at_batch
        at_next = None
        if first.next_batch_size is not None:
            at_next = predictor_of(first.step | {"batch_size": first.next_batch_size})
        between = predictor_of(first.step | {"optimizer": None}) if first.micro_batches > 1 else timed
        sizes = [predictor_of(step) for step in first.sizes]
        return [_predict(row, at_batch, timed, at_next, between, sizes) for row in rows]
    except InfeasibleSchedule:
        return [RowPrediction(fits=False) for _ in rows]
    except MembenchError as error:
        return [RowPrediction(reason=one_line(error)) for _ in rows]
    except Exception as error:
        return [RowPrediction(reason=f"{type(error).__name__}: {one_line(error)}") for _ in rows]


def _predict(
    row: Row,
    at_batch: Predictor,
    timed: Predictor,
    at_next: Predictor | None,
    between: Predictor,
    sizes: Sequence[Predictor],
) -> RowPrediction:
    """Predict a row.

    Args:
        between: the step of a micro-batch without the update.
    """
    device = replace(
        in_process(as_device(row.device), row.step), benchmarks_convolutions=bool(row.step.get("benchmark"))
    )
    machine = _machine(row)
    planned_in = _planned_in(machine)
    prediction = at_batch.on(device, planned_in)
    found = {name: getattr(prediction, name) for name in QUANTITIES if name != LARGEST}
    if timed is not at_batch:
        found["step_time_s"] = timed.on(device, planned_in).step_time_s
    if between is not timed:
        without_s = between.on(device, planned_in).step_time_s
        found["step_time_s"] = without_s + (found["step_time_s"] - without_s) / row.micro_batches
    found["step_time_s"] += row.around_s
    if sizes:
        found[LARGEST] = largest_parameters(*sizes, device=device, machine=machine)
    values = {name: float(value) for name, value in found.items() if value is not None}
    return RowPrediction(
        values={**values, "roofline_time_s": roofline_time_s(timed.graph_on(device), device)},
        fits=_fits(prediction, machine),
        next_fits=_fits(at_next.on(device, planned_in), machine) if at_next else None,
    )


def operators_of(row: Row) -> tuple[OperatorTime, ...]:
    """Return the operators of the step of a row whose time was measured.

    Raises:
        MembenchError: the row cannot be predicted, or is a pipeline's.
    """
    runs, cost = predictor_of(row.timed or row.step).planned(
        configuration.load("device", row.device), _planned_in(_machine(row))
    )
    return operator_times(runs, cost)


def predictor_of(step: Configuration) -> Predictor:
    """Return the predictor of a row's step."""
    model = Model.from_configuration(step["model"])
    workload = replace(
        model.workload(step["batch_size"], seed=0, device="meta"),
        precision=step["precision"] and Precision.of_step(step["precision"]),
        channels_last=step["channels_last"],
        holds_output=bool(step.get("holds_output")),
    )
    kernels = step.get("kernels")
    return Predictor(
        workload,
        StepRequest(
            _strategy(step.get("strategy", STRATEGY)),
            optimizer=_update(step["optimizer"]),
            kernels=kernels and choice(Kernels, "kernels", kernels),
        ),
        _ranks(workload.module, step["ranks"]) if "ranks" in step else ONE_RANK,
        step.get("rates"),
        keeps_layout=bool(step.get("keeps_layout")),
    )


def _ranks(module: nn.Module, described: Mapping[str, Any]) -> Ranks:
    described = dict(described)
    nodes = int(described.pop("nodes", 1))
    options = {
        **described,
        "cluster": replace(_cluster(described["cluster"]), hosts=nodes),
        "parallel": {axis: int(size) for axis, size in described["parallel"].items()},
        "accumulate": int(described.get("accumulate", 1)),
    }
    return ranks_of(module, **options)


def _strategy(described: Any) -> Strategy:
    """Return a strategy that is described by its name, or by its name and some of its options."""
    options = dict(described) if isinstance(described, Mapping) else {"name": described}
    return find_strategy(options.pop("name"))(**options)


def _cluster(described: Mapping[str, Any]) -> Cluster:
    """Return a cluster that is described by its name, and by values that replace its own."""
    values = {name: value for name, value in described.items() if name != "name"}
    cluster: Cluster = instantiate({**configuration.read("cluster", described["name"]), **values})
    return cluster


def _machine(row: Row) -> Machine | None:
    if row.machine is None:
        return None
    machine: Machine = instantiate({**configuration.read("machine", row.machine["name"]), **row.machine})
    return machine


def _planned_in(machine: Machine | None) -> Machine | None:
    return machine if machine and machine.disk_bytes else _roomy(machine)


def _roomy(machine: Machine | None) -> Machine | None:
    """Return a machine that needs no disk: whether its memory suffices is judged by what the step holds."""
    return machine and replace(machine, memory_bytes=_ROOMY_BYTES)


def _room_bytes(machine: Machine) -> int:
    return machine.memory_bytes + (machine.disk_bytes or 0)


def _fits(prediction: Prediction, machine: Machine | None) -> bool:
    return prediction.fits and (machine is None or prediction.host_bytes <= _room_bytes(machine))


def largest_parameters(small: Predictor, large: Predictor, *, device: DeviceProfile, machine: Machine | None) -> float:
    """Return the weights of the deepest network that a device in a machine can train, given two depths of it.

    The memory that a step needs grows linearly with the layers, as long as all of them are treated alike.
    """
    weights = [sum(weight.numel() for weight in each.module.parameters()) for each in (small, large)]
    found = [each.on(device, _roomy(machine)) for each in (small, large)]
    used_bytes = [each.used_bytes or each.reserved_bytes for each in found]
    limits = [_crossing(weights, used_bytes, device.memory_bytes)]
    if machine is not None:
        limits.append(_crossing(weights, [each.host_bytes for each in found], _room_bytes(machine)))
    return min(limits)


def _crossing(weights: Sequence[int], used_bytes: Sequence[int], limit_bytes: int) -> float:
    """Return the weights with which memory that grows linearly reaches a limit."""
    slope = (used_bytes[1] - used_bytes[0]) / (weights[1] - weights[0])
    return weights[0] + (limit_bytes - used_bytes[0]) / slope if slope > 0 else inf


def _update(described: Any) -> WeightUpdate | None:
    """Return an optimizer that is described by its name, or by its name and some of its options."""
    if not isinstance(described, Mapping):
        return as_update(described)
    update: WeightUpdate = instantiate({**configuration.read("optimizer", described["name"]), **described})
    return update


def roofline_time_s(graph: TaskGraph, device: DeviceProfile) -> float:
    """Return a step's seconds by a plain roofline: each task at the datasheet's rates, the longer of its times."""
    return sum(
        max(_operations(task) / device.product_ops_per_s(task.precision), task.moved_bytes / device.memory_bytes_per_s)
        for task in graph.tasks
    )


def _operations(task: Task) -> float:
    """Return a task's operations; torch counts those of a weight's gradient once for each group of the convolution."""
    if task.convolution is not None and task.gradient_of is GradientOf.WEIGHT:
        return task.operations / task.convolution.groups
    return task.operations
