"""vDNN's own numbers of a step: averages over layers, without the classifier, and the times of layers and copies."""

from collections import defaultdict
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from torch import nn

import membench
from experiments.vdnn.metrics import step_metrics
from membench.core import configuration
from membench.core.graph.schedule import Compute, Offload, RepeatedSchedule, Schedule
from membench.core.graph.task_graph import GradientOf, Phase, Role, TaskGraph
from membench.cost.roofline import RooflineCost
from membench.planning.memory.liveness import live_bytes
from membench.steps.simulated_step import simulated_step
from membench.strategies.eager import Eager
from membench.strategies.network_wide import NetworkWide
from membench.strategies.vdnn import VdnnAll
from membench.sweep.cells.metrics import Metrics
from tests.helpers.planning.graphs import captured

K40 = configuration.load("device", "k40_vdnn")
TORCH7 = configuration.load("framework", "torch7")
COST = RooflineCost(K40, TORCH7.efficiency)


@pytest.fixture(scope="module")
def graph() -> TaskGraph:
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, padding=1)
    return TORCH7.lower(captured(nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)), 4, 3, 8, 8))


def numbers(schedule: Schedule) -> Metrics:
    step = simulated_step((RepeatedSchedule(schedule),), COST)
    return dict(step_metrics(step.plan, step.timelines, K40))


def test_the_average_of_what_stays_allocated_is_all_of_it_without_the_classifier(graph: TaskGraph) -> None:
    schedule = NetworkWide(shared_gradients=True, algorithms="performance").schedule(graph, COST, None)
    found = numbers(schedule)
    classifier_bytes = 2 * 4 * (128 * 10 + 10)  # weights, biases and their gradients
    labels_bytes = sum(block.size_bytes for block in graph.blocks if block.role is Role.LABEL)
    expected = schedule.peak_bytes - classifier_bytes - labels_bytes
    assert found["managed_average_bytes"] == expected
    assert found["managed_average_over_time_bytes"] == pytest.approx(expected)


def test_an_average_has_each_layer_once_in_each_direction(graph: TaskGraph) -> None:
    """A convolution's two gradients are one layer, which counts with the more that is held, however long they take."""
    workspace_bytes = {GradientOf.WEIGHT: 10**6, GradientOf.DATA: 10**3, None: 0}
    tasks = (replace(t, workspace_bytes=workspace_bytes[t.gradient_of]) for t in graph.tasks)
    schedule = Eager().schedule(replace(graph, tasks=tuple(tasks)), COST, None)
    held: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for item, held_bytes in zip(schedule.instructions, live_bytes(schedule), strict=True):
        if isinstance(item, Compute):
            task = schedule.graph.tasks[item.task]
            held[task.layer, task.phase is Phase.BACKWARD].append(held_bytes)
    assert any(samples[0] > samples[-1] for samples in held.values())
    allocated = NetworkWide(shared_gradients=True, algorithms="performance").schedule(graph, COST, None)
    unmanaged_bytes = allocated.peak_bytes - numbers(allocated)["managed_average_bytes"]
    expected = fmean(max(samples) for samples in held.values()) - unmanaged_bytes
    assert numbers(schedule)["managed_average_bytes"] == pytest.approx(expected)


def test_a_copy_belongs_to_the_layer_whose_input_it_moves(graph: TaskGraph) -> None:
    """The second convolution's input leaves while it runs forward, and is back before it runs backward."""
    found = numbers(VdnnAll().schedule(graph, COST, None))
    assert found["offload_start_s:2"] <= found["forward_start_s:2"] < found["offload_end_s:2"]
    assert found["forward_end_s:2"] < found["prefetch_start_s:2"] < found["prefetch_end_s:2"]
    assert found["prefetch_end_s:2"] <= found["backward_start_s:2"] < found["backward_end_s:2"]
    assert "offload_start_s:0" not in found  # the images are the caller's


def test_copies_of_what_no_layer_reads_forward_are_of_none() -> None:
    """A method of another paper also moves masks and positions of maxima, which only the backward pass reads."""
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.MaxPool2d(2), nn.Flatten())
    images, classes = torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long)
    step = membench.compile(
        nn.Sequential(*layers), nn.functional.cross_entropy, (images, classes),
        backend="simulated", device=K40, strategy="layrub_hybrid",
    )  # fmt: skip
    assert isinstance(step, membench.SimulatedStep)
    schedule = step.plan[0].schedule
    copied = {item.block for item in schedule.instructions if isinstance(item, Offload)}
    assert "1:mask" in {schedule.graph.blocks[block].name for block in copied}
    found = step_metrics(step.plan, step.timelines, K40)
    assert [name for name in found if name.startswith("offload_start_s")] == ["offload_start_s:2"]
