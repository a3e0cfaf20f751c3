"""Simulated cells: a step planned for and played on a virtual device."""

import torch

from membench.capture.update.captured_update import CapturedUpdate
from membench.core.errors import OutOfMemory, UnsupportedStrategy
from membench.core.libraries.garbage import without_collection
from membench.core.step.workload import share_size
from membench.frameworks.pytorch import PyTorch
from membench.planning.memory.device_memory import DeviceMemory, device_memory
from membench.planning.parallel.exchange import update_before
from membench.steps.plan import Runs, StepPlanner
from membench.steps.simulated_step import check_capacity, cluster_step, simulated_step
from membench.strategies.base import Strategy
from membench.sweep.cells.cell import Cell
from membench.sweep.cells.graphs import Graphs
from membench.sweep.cells.metrics import (
    CellNumbers,
    device_memory_metrics,
    oracular_metrics,
    plan_metrics,
    plan_note,
    time_metrics,
)
from membench.sweep.cells.power import power_metrics

MEASURED_SAMPLES = 8
"""On how many samples, at most, a simulated cell measures densities."""


@without_collection()  # which would look through millions of objects again and again
def simulate(cell: Cell, graphs: Graphs, found: CellNumbers) -> None:
    """Play a cell and add its numbers to `found`, those of memory first: of a step that does not fit, they remain.

    Raises:
        OutOfMemory: the device is too small, or PyTorch finds no room on it next to its context.
        MembenchError: the cell cannot be planned; the message says why.
    """
    device, metrics = cell.simulated_device, found.metrics
    local = planned_step(cell, graphs)
    step = cluster_step(local, cell.cost, cell.cluster, cell.exchange)
    metrics.update(plan_metrics(step.plan), capacity_bytes=device.memory_bytes, devices=cell.cluster.devices)
    memory = _card_memory(cell, step.plan)
    metrics.update(device_memory_metrics(memory) if memory else {})
    found.note = plan_note(step.plan)
    metrics.update(oracular_metrics(step.plan, step.timelines))
    found.layer_metrics.update(step.plan[0].schedule.decisions)
    if cell.step_metrics:
        found.add(cell.step_metrics(step.plan, step.timelines, device))
    check_capacity(step.plan, device)
    if memory and not memory.fits:
        assert memory.used_bytes is not None, "the device's context is known"
        raise OutOfMemory(needed_bytes=memory.used_bytes, capacity_bytes=device.memory_bytes)
    measured = step.measure()
    metrics.update(time_metrics(measured), peak_memory_bytes=step.predicted_peak_bytes)
    if cell.cluster.devices > 1:
        metrics["local_step_time_s"] = simulated_step(local, cell.cost).step_time_s
    if device.power:  # of one device
        images_per_s = measured.images_per_s / cell.cluster.devices
        metrics.update(
            power_metrics(step.plan, step.timelines, device.power, cell.cost.occupancy, images_per_s=images_per_s)
        )


def _card_memory(cell: Cell, runs: Runs) -> DeviceMemory | None:
    """Return a step's memory as a card shows it: under PyTorch, on a device whose context is known."""
    if not isinstance(cell.framework, PyTorch) or cell.simulated_device.context_bytes is None:
        return None
    return device_memory(runs, cell.simulated_device)


def planned_step(cell: Cell, graphs: Graphs) -> Runs:
    """Plan a simulated cell's step on one device's share of the batch, before any exchange with others."""
    if cell.optimizer and not isinstance(cell.framework, PyTorch):
        raise UnsupportedStrategy(
            f"framework {cell.framework.name!r} updates the weights in its own way, with states that it always holds; "
            "choose framework=pytorch, or leave the optimizer out"
        )
    strategy = _strategy(cell)
    share = share_size(cell.batch_size, cell.cluster.devices)
    graph_at = graphs.lowered_at(cell, share)
    captured = None if cell.optimizer is None else CapturedUpdate(cell.optimizer)
    update = update_before(cell.exchange if cell.cluster.devices > 1 else None, captured)

    def excess_bytes(runs: Runs) -> int:
        memory = _card_memory(cell, runs)
        allocated_bytes = max(run.schedule.peak_bytes for run in runs)
        return max(0, allocated_bytes - room_bytes) or (memory.excess_bytes if memory else 0)

    device = cell.simulated_device
    room_bytes = device.free_bytes if isinstance(cell.framework, PyTorch) else device.memory_bytes
    planner = StepPlanner(graph_at, share, strategy, cell.cost, update, cell.micro_batch)
    return planner.planned(cell.budget_bytes, excess_bytes, room_bytes)


def _strategy(cell: Cell) -> Strategy:
    """Return a cell's strategy; densities are measured on this machine, on a few samples."""
    if not cell.method.measures_density:
        return cell.method.strategy()
    if not isinstance(cell.framework, PyTorch):
        raise UnsupportedStrategy(
            f"framework {cell.framework.name!r} has other activations than those that can be measured; choose "
            "framework=pytorch, or give a density"
        )
    few = min(cell.batch_size, MEASURED_SAMPLES)
    workload = cell.model.workload(few, seed=cell.seed, device="cpu")
    return cell.method.strategy_for(workload, torch.device("cpu"))
