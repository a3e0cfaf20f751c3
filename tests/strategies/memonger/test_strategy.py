"""memonger: the square root of the depth, for one more forward pass."""

from collections import Counter

import pytest
import torch
from torchvision.models import resnet50

from membench.core.schedule import Compute, Schedule
from membench.core.task_graph import Kind, Phase, TaskGraph
from membench.planning.liveness import peak_bytes
from membench.planning.recompute import Repeatable, recompute
from membench.steps.plan import plan
from membench.strategies.base import Strategy
from membench.strategies.eager import Eager
from membench.strategies.memonger.strategy import GUESSES, TRIALS, Memonger, _ForwardPass
from tests.helpers.chains import ACTIVATION_ROLES, FEATURE_MAP_BYTES, chain_of_convolutions, graph_of
from tests.helpers.costs import UnitCost

LARGEST_VECTOR_BYTES = 2048 * 4
"""Of ResNet-50: one number a channel."""


def maps_held(strategy: Strategy, graph: TaskGraph) -> float:
    return peak_bytes(plan(graph, strategy, UnitCost(), None), ACTIVATION_ROLES) / FEATURE_MAP_BYTES


@pytest.mark.parametrize("root", [3, 4, 6, 8, 10])
def test_a_chain_of_equal_convolutions_holds_twice_the_square_root_of_its_depth(root: int) -> None:
    """Kept are root - 1 activations between segments; the last of root activations is never alive with its gradient."""
    graph = chain_of_convolutions(root**2)
    assert round(maps_held(Memonger(), graph), 1) == 2 * root - 1
    assert round(maps_held(Eager(), graph), 1) == root**2 + 1


def test_four_times_the_depth_takes_twice_the_memory() -> None:
    shallow, deep = (
        maps_held(Memonger(), chain_of_convolutions(depth, normalized=True)) for depth in (25, 100)
    )
    assert 1.7 < deep / shallow < 2.3


@pytest.fixture(scope="module")
def residual() -> Schedule:
    with torch.device("meta"):
        graph = graph_of(resnet50(), 3, 224)
    return plan(graph, Memonger(), UnitCost(), None)


def test_a_task_of_the_forward_pass_runs_at_most_twice(residual: Schedule) -> None:
    tasks = residual.graph.tasks
    runs = Counter(
        t.name.removesuffix(" again") for t in tasks if t.gradient_of is None and t.kind is not Kind.LOSS
    )
    assert max(runs.values()) == 2
    forward = sum(task.phase is Phase.FORWARD for task in tasks)
    again = sum(task.name.endswith(" again") for task in tasks)
    assert 0.5 * forward < again < forward


def test_every_segment_is_recomputed_the_last_one_too(residual: Schedule) -> None:
    names = {residual.graph.tasks[i.task].name for i in residual.instructions if isinstance(i, Compute)}
    assert {"conv1:convolution again", "layer2.1.conv1:convolution again"} < names
    assert "layer4.2.conv2:convolution again" in names
    assert "fc:addmm again" not in names  # only the loss reads its output


def test_the_plan_with_the_least_peak_is_taken(residual: Schedule) -> None:
    with torch.device("meta"):
        graph = graph_of(resnet50(), 3, 224)
    forward, repeatable = _ForwardPass(graph), Repeatable(graph, UnitCost())
    sizes = list(forward.segment_sizes_bytes())
    assert sizes[0] == 0
    assert len(sizes) == GUESSES + TRIALS
    for size_bytes in sizes:
        one = recompute(repeatable, forward.segments(tuple(forward.split(size_bytes))))
        assert residual.peak_bytes <= plan(one, Eager(), UnitCost(), None).peak_bytes


def test_segments_end_where_the_network_is_narrow(residual: Schedule) -> None:
    """Between two residual units one activation crosses, overwritten by the batch norm, sum and ReLU of the unit."""
    graph = residual.graph
    made = {block for task in graph.tasks if task.phase is Phase.FORWARD for block in task.creates}
    needed = {block for layer in graph.backward_layers for block in layer.reads}
    maps = [graph.blocks[b] for b in made & needed if graph.blocks[b].size_bytes > LARGEST_VECTOR_BYTES]
    kept = {graph.layers[block.layer] for block in maps}
    assert {name.rsplit(".", 1)[-1] for name in kept} <= {"maxpool", "bn3", "avgpool", "fc"}
    assert 5 <= len(kept) <= 16
