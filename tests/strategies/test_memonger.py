"""memonger: the square root of the depth, for one more forward pass; its storages against MXNet's rule on a list."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.models import resnet50

from membench.core.graph.schedule import Compute, Schedule
from membench.core.graph.task_graph import Kind, Phase, TaskGraph
from membench.core.units import MIB
from membench.frameworks.lowering import lower_layers
from membench.frameworks.mxnet import MXNET
from membench.planning.memory.liveness import peak_bytes
from membench.planning.rewrites.recompute import Repeatable, recompute
from membench.steps.plan import plan
from membench.strategies.base import Strategy
from membench.strategies.eager import Eager
from membench.strategies.memonger import GUESSES, MATCH_RANGE, TRIALS, Memonger, StoragePool, _ForwardPass
from tests.helpers.planning.chains import ACTIVATION_ROLES, FEATURE_MAP_BYTES, chain_of_convolutions, graph_of
from tests.helpers.planning.costs import UnitCost
from tests.helpers.planning.graphs import captured_model

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


@pytest.mark.slow
def test_four_times_the_depth_takes_twice_the_memory() -> None:
    shallow, deep = (maps_held(Memonger(), chain_of_convolutions(depth, normalized=True)) for depth in (25, 100))
    assert 1.7 < deep / shallow < 2.3


@pytest.fixture(scope="module")
def residual() -> Schedule:
    with torch.device("meta"):
        graph = graph_of(resnet50(), 3, 224)
    return plan(graph, Memonger(), UnitCost(), None)


def test_a_task_of_the_forward_pass_runs_at_most_twice(residual: Schedule) -> None:
    tasks = residual.graph.tasks
    runs = Counter(t.name.removesuffix(" again") for t in tasks if t.gradient_of is None and t.kind is not Kind.LOSS)
    assert max(runs.values()) == 2
    forward = sum(task.phase is Phase.FORWARD for task in tasks)
    again = sum(task.name.endswith(" again") for task in tasks)
    assert 0.5 * forward < again < forward


def test_every_segment_is_recomputed_the_last_one_too(residual: Schedule) -> None:
    names = {residual.graph.tasks[i.task].name for i in residual.instructions if isinstance(i, Compute)}
    assert {"conv1:convolution again", "layer2.1.conv1:convolution again"} < names
    assert "layer4.2.conv2:convolution again" in names
    assert "fc:addmm again" not in names  # only the loss reads its output
    assert not residual.note


def test_the_plan_with_the_least_peak_is_taken(residual: Schedule) -> None:
    with torch.device("meta"):
        graph = graph_of(resnet50(), 3, 224)
    forward, repeatable = _ForwardPass(graph, marks_units=False), Repeatable(graph, UnitCost())
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


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("vgg16", {Kind.POOLING}),
        ("googlenet", {Kind.POOLING, Kind.CONCATENATE}),
        ("resnet34", {Kind.POOLING, Kind.ADD, Kind.RELU}),
    ],
)
def test_marked_segments_end_where_the_networks_units_do(name: str, ends: set[Kind]) -> None:
    graph = lower_layers(captured_model(name, 2), MXNET)
    forward = _ForwardPass(graph, marks_units=True)
    found = {graph.tasks[end - 1].kind for size in forward.segment_sizes_bytes() for _, end in forward.split(size)[:-1]}
    assert found
    assert found <= ends


def test_a_marked_lenet_recomputes_what_an_unmarked_one_keeps() -> None:
    graph = lower_layers(captured_model("lenet", 64), MXNET)
    plans = {marks: plan(graph, Memonger(True, marks_units=marks), UnitCost(), None) for marks in (False, True)}
    again = {marks: sum(t.name.endswith(" again") for t in made.graph.tasks) for marks, made in plans.items()}
    assert again[False] == 0 < again[True]


@dataclass
class NaiveStorages:
    """The same policy; looks at every free storage for every request."""

    sizes: dict[int, int] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)

    def allocate(self, size_bytes: int) -> int:
        free = sorted((size, storage) for storage, size in self.sizes.items() if storage not in self.taken)
        larger = [entry for entry in free if size_bytes <= entry[0] <= MATCH_RANGE * size_bytes]
        smaller = [entry for entry in free if size_bytes // MATCH_RANGE <= entry[0] < size_bytes]
        if larger:
            storage = larger[0][1]
        elif smaller:
            storage = smaller[-1][1]
        else:
            storage = len(self.sizes)
        self.sizes[storage] = max(self.sizes.get(storage, 0), size_bytes)
        self.taken.add(storage)
        return storage


ALLOCATE = st.integers(1, 2000).map(lambda size_bytes: ("allocate", size_bytes))
FREE = st.integers(0, 50).map(lambda number: ("free", number))


@given(st.lists(ALLOCATE | FREE, max_size=60))
def test_storages_are_those_of_the_naive_model(actions: list[tuple[str, int]]) -> None:
    pool, model = StoragePool(), NaiveStorages()
    live: list[tuple[int, int]] = []  # storage, requested size
    for action, number in actions:
        if action == "allocate":
            storage = pool.allocate(number)
            assert storage == model.allocate(number)
            live.append((storage, number))
        elif live:
            storage, size_bytes = live.pop(number % len(live))
            pool.free(storage, size_bytes)
            model.taken.discard(storage)
        assert pool.held_bytes == sum(model.sizes.values()) >= sum(size for _, size in live)


def test_a_storage_is_never_split() -> None:
    pool = StoragePool()
    pool.free(pool.allocate(1600), 1600)
    small, other = pool.allocate(100), pool.allocate(100)
    assert small != other
    assert pool.held_bytes == 1700


def test_a_storage_that_is_much_larger_is_left_alone() -> None:
    pool = StoragePool()
    pool.free(pool.allocate(1601), 1601)
    pool.allocate(100)
    assert pool.held_bytes == 1701


def test_a_storage_that_is_too_small_grows() -> None:
    pool = StoragePool()
    pool.free(pool.allocate(100), 100)
    pool.allocate(1600)
    assert pool.held_bytes == 1600


def test_a_large_storage_is_whole_mebibytes() -> None:
    pool = StoragePool()
    pool.free(pool.allocate(MIB + 1), MIB + 1)
    assert pool.held_bytes == 2 * MIB
    pool.free(pool.allocate(3 * MIB - 1), 3 * MIB - 1)
    assert pool.held_bytes == 3 * MIB


def test_zero_bytes_take_no_room() -> None:
    pool = StoragePool()
    pool.free(pool.allocate(0), 0)
    assert pool.held_bytes == 0
