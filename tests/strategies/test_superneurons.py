"""SuperNeurons: what is offloaded, what is recomputed and how often, and when it is prefetched."""

from collections import Counter

import pytest
import torch
from torch import nn
from torchvision.models import resnet50

from membench.core.graph.schedule import Compute, Offload, Prefetch, Schedule
from membench.core.graph.task_graph import Kind, Phase
from membench.planning.memory.liveness import peak_bytes
from membench.steps.plan import plan
from membench.strategies.superneurons import SuperNeurons
from tests.helpers.planning.chains import ACTIVATION_ROLES, FEATURE_MAP_BYTES, chain_of_convolutions, graph_of
from tests.helpers.planning.costs import UnitCost

CHEAP = frozenset({Kind.BATCH_NORM, Kind.RELU, Kind.POOLING, Kind.DROPOUT})


@pytest.fixture(scope="module")
def residual() -> Schedule:
    with torch.device("meta"):
        return plan(graph_of(resnet50(), 3, 224), SuperNeurons(), UnitCost(), None)


def convolution() -> nn.Module:
    return nn.Conv2d(8, 8, 3, padding=1)


def planned(*layers: nn.Module) -> Schedule:
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    return plan(graph_of(nn.Sequential(*layers, *head), 8, 16), SuperNeurons(), UnitCost(), None)


def again(schedule: Schedule) -> list[str]:
    return [task.name for task in schedule.graph.tasks if task.name.endswith(" again")]


def layers_offloaded(schedule: Schedule) -> set[str]:
    graph = schedule.graph
    return {graph.layers[graph.blocks[i.block].layer] for i in schedule.instructions if isinstance(i, Offload)}


def test_only_cheap_layers_run_again(residual: Schedule) -> None:
    kinds = {task.kind for task in residual.graph.tasks if task.name.endswith(" again")}
    assert kinds <= CHEAP
    assert Kind.BATCH_NORM in kinds


def test_results_of_convolutions_and_sums_leave_for_the_host(residual: Schedule) -> None:
    """A unit's sum is written onto its last batch norm's result. What the turn needs stays."""
    convolutions = {t.name.split(":")[0] for t in residual.graph.tasks if t.kind is Kind.CONVOLUTION}
    units = {name.replace("conv3", "bn3") for name in convolutions if name.endswith("conv3")}
    assert layers_offloaded(residual) == (convolutions | units) - {"layer4.2.bn3"}


def test_no_memory_grows_with_depth() -> None:
    held = [
        peak_bytes(
            plan(chain_of_convolutions(depth, normalized=True), SuperNeurons(), UnitCost(), None), ACTIVATION_ROLES
        )
        for depth in (6, 30)
    ]
    assert held[1] < held[0] + 0.1 * FEATURE_MAP_BYTES  # saved means and deviations
    assert held[0] < 6 * FEATURE_MAP_BYTES


def test_a_checkpoint_comes_back_one_checkpoint_before_it_is_needed() -> None:
    schedule = plan(chain_of_convolutions(6, normalized=True), SuperNeurons(), UnitCost(), None)
    graph = schedule.graph
    order: list[str] = []
    for item in schedule.instructions:
        if isinstance(item, Prefetch):
            order.append(f"fetch {graph.layers[graph.blocks[item.block].layer]}")
        elif isinstance(item, Compute) and graph.tasks[item.task].phase is Phase.BACKWARD:
            order.append(graph.tasks[item.task].name)
    fetched = [name for name in order if name.startswith("fetch")]
    assert fetched == ["fetch 12", "fetch 9", "fetch 6", "fetch 3", "fetch 0"]
    for layer in (9, 6, 3, 0):
        before = order.index(f"{layer + 6}:convolution_backward")
        assert order.index(f"fetch {layer}") == before - 1
        assert before < order.index(f"{layer + 1}:native_batch_norm again")


def test_a_small_segment_is_recomputed_once_and_a_large_one_for_each_layer() -> None:
    """One activation is less than a task's; four are more, so each is recomputed for each of its readers."""
    runs = Counter(again(planned(convolution(), nn.ReLU(), convolution())))
    assert runs["1:relu again"] == 1
    runs = Counter(again(planned(convolution(), nn.ReLU(), nn.Sigmoid(), nn.Tanh(), nn.GELU(), convolution())))
    # Backward: the convolution reads GELU's result, GELU and tanh tanh's, the sigmoid and ReLU their own.
    expected = {"4:gelu again": 1, "3:tanh again": 3, "2:sigmoid again": 4, "1:relu again": 5}
    assert {name: runs[name] for name in expected} == expected


def test_dropout_runs_once() -> None:
    schedule = planned(convolution(), nn.ReLU(), nn.Dropout(), convolution())
    assert sum(task.random for task in schedule.graph.tasks) == 1
    assert "2:native_dropout again" in again(schedule)
