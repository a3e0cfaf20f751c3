"""Recomputation: the same bits whatever is dropped, and what may not be dropped stays."""

import random
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from membench.backends.cpu import Chaos, CpuBackend
from membench.capture.capture import capture
from membench.planning.builder import ScheduleBuilder
from membench.planning.recompute import Segment, recompute
from membench.schedule import Schedule
from membench.step import TrainingStep
from membench.strategies.on_demand import compute_on_demand
from membench.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.workload import Workload
from tests.contract.networks import COST, Reference, reference_of
from tests.contract.test_random_networks import CHANNELS, PLANS, RandomNetwork
from tests.contract.test_strategies import check_exact


def on_demand(graph: TaskGraph) -> Schedule:
    builder = ScheduleBuilder("on demand", COST.annotate(graph), budget_bytes=None)
    compute_on_demand(builder)
    return builder.finish()


def made_forward(graph: TaskGraph) -> list[int]:
    return [block for task in graph.tasks if task.phase is Phase.FORWARD for block in task.creates]


def everything(graph: TaskGraph, *, per_layer: bool = False) -> list[Segment]:
    return [Segment(frozenset(made_forward(graph)), per_layer)]


def case_of(*layers: nn.Module) -> Reference:
    torch.manual_seed(0)
    arguments = (torch.randn(2, CHANNELS, 6, 6),), (torch.randint(3, (2,)),)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 3))
    return reference_of(
        Workload("net", nn.Sequential(*layers, *head), nn.functional.cross_entropy, *arguments)
    )


def convolution() -> nn.Conv2d:
    return nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layers=PLANS, seed=st.integers(0, 1000), segments=st.integers(1, 4))
def test_whatever_is_dropped_results_are_exact(
    layers: list[tuple[str, int, int]], seed: int, segments: int
) -> None:
    """Segments are drawn at random, block by block: most of what they ask cannot be, and must not be done."""
    torch.manual_seed(seed)
    arguments = (torch.randn(2, CHANNELS, 6, 6),), (torch.randint(3, (2,)),)
    work = Workload("random", RandomNetwork(layers), nn.functional.cross_entropy, *arguments)
    case = reference_of(work)
    graph, draw = case.captured.graph, random.Random(seed)
    asked: list[list[int]] = [[] for _ in range(segments + 1)]
    position = 0
    for block in made_forward(graph):
        position = draw.choice((position, position, draw.randrange(segments + 1)))
        asked[position].append(block)
    graph = recompute(graph, [Segment(frozenset(s), draw.random() < 0.5) for s in asked[1:]])
    check_exact(case, on_demand(graph), Chaos(seed, longest_delay_s=0.0))


@pytest.mark.parametrize("per_layer", [False, True])
def test_each_task_runs_once_more_at_most_or_once_for_each_layer(per_layer: bool) -> None:
    case = case_of(*(layer for _ in range(4) for layer in (convolution(), nn.ReLU())))
    graph = recompute(case.captured.graph, everything(case.captured.graph, per_layer=per_layer))
    runs = Counter(t.name.removesuffix(" again") for t in graph.tasks if t.kind is Kind.CONVOLUTION)
    convolutions = [runs[f"{layer}:convolution"] for layer in (0, 2, 4, 6)]
    assert convolutions == ([8, 6, 4, 2] if per_layer else [2, 2, 2, 2])
    check_exact(case, on_demand(graph), Chaos(1, longest_delay_s=0.0))


def test_only_what_is_needed_runs_again() -> None:
    """Nobody needs the last ReLU's output but the pooling, whose backward needs shapes alone."""
    case = case_of(convolution(), nn.ReLU(), nn.GELU(), nn.AvgPool2d(2), nn.Sigmoid())
    graph = recompute(case.captured.graph, everything(case.captured.graph))
    names = [task.name for task in graph.tasks]
    print(names)


def test_repeated_tasks_come_right_before_their_first_reader() -> None:
    case = case_of(convolution(), nn.ReLU(), convolution(), nn.ReLU())
    graph = recompute(case.captured.graph, everything(case.captured.graph))
    print([task.name for task in graph.tasks])
