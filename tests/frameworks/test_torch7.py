"""Memory of networks under Torch7, counted from first principles."""

import pytest
import torch
from torch import Tensor, nn

from membench.core import configuration
from membench.core.graph.task_graph import GradientOf, Kind, Phase, Role, TaskGraph
from membench.core.units import GIB
from membench.cost.roofline import RooflineCost
from membench.planning.checking.validate import validate
from membench.strategies.network_wide import NetworkWide
from tests.helpers.planning.graphs import captured, captured_model, held, names, sizes, tasks_of

TORCH7 = configuration.load("framework", "torch7")
K40 = configuration.load("device", "k40_vdnn")
COST = RooflineCost(K40, TORCH7.efficiency)


def lower(module: nn.Module, *shape: int) -> TaskGraph:
    """Lower a network of ten classes."""
    return TORCH7.lower(captured(module, *shape))


def lowered(name: str, batch_size: int) -> TaskGraph:
    return TORCH7.lower(captured_model(name, batch_size))


@pytest.fixture(scope="module")
def vgg() -> TaskGraph:
    return lowered("vgg19", 32)


class Residual(nn.Module):
    """Convolution, batch norm and ReLU parallel to a shortcut, then both branches joined."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1)
        self.bn, self.relu, self.drop = nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout()
        self.classifier = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        x = torch.cat([x, x + self.relu(self.bn(self.second(x)))], 1)
        return self.classifier(self.drop(torch.flatten(x, 1)))


@pytest.fixture(scope="module")
def residual() -> TaskGraph:
    return lower(Residual(), 2, 3, 2, 2)


def test_vgg_keeps_the_layer_inputs_that_vdnn_offloads(vgg: TaskGraph) -> None:
    """Images, convolutions and poolings are 63.1 MiB for each image; ReLU overwrites the output of its convolution."""
    extracted = {name: size for name, size in sizes(vgg, Role.ACTIVATION).items() if name.startswith("features")}
    images_bytes = held(vgg, Role.INPUT)
    assert len(extracted) == 16 + 5
    assert (images_bytes + sum(extracted.values())) / GIB == pytest.approx(32 * 63.1 / 1024, rel=1e-3)
    assert held(vgg, Role.OPTIMIZER_STATE) == held(vgg, Role.WEIGHT)
    assert vgg.overhead_bytes == 0


def test_the_baseline_of_vgg_is_activations_two_gradients_and_weights(vgg: TaskGraph) -> None:
    """vDNN, Section 2.3; base(m) has no workspace. The region's planner adds a small third buffer to the two."""
    schedule = NetworkWide(shared_gradients=True).schedule(vgg, COST, None)
    largest = 4 * 32 * 64 * 224 * 224
    kept = vgg.external_bytes + held(vgg, Role.ACTIVATION, Role.INTERNAL, Role.LOSS)
    assert 0 <= schedule.peak_bytes - kept - 2 * largest <= largest // 8


@pytest.mark.parametrize("algorithms", ["memory", "performance"])
def test_algorithms_decide_the_workspace_of_the_baseline(vgg: TaskGraph, algorithms: str) -> None:
    own = NetworkWide(shared_gradients=True).schedule(vgg, COST, None)
    chosen = NetworkWide(shared_gradients=True, algorithms=algorithms).schedule(vgg, COST, None)
    ways = [COST.algorithms(task)[0] for task in vgg.tasks if task.convolution]
    largest = max(way.workspace_bytes for way in ways) if algorithms == "performance" else 0
    assert chosen.peak_bytes == own.peak_bytes + largest
    validate(chosen)


def test_implicit_gemm_computes_what_capture_counted(vgg: TaskGraph) -> None:
    rate = K40.arithmetic_ops_per_s * TORCH7.efficiency.convolution["implicit_gemm"]
    second = [task for task in vgg.tasks if vgg.layers[task.layer] == "features.2" and task.convolution]
    assert len(second) == 3
    for task in second:
        way = next(way for way in COST.algorithms(task) if way.name == "implicit_gemm")
        assert way.time_s == pytest.approx(task.operations / rate)


def test_pooling_reads_input_output_and_gradient_and_keeps_no_index(vgg: TaskGraph) -> None:
    [pool] = tasks_of(vgg, "features.4", Phase.BACKWARD)
    assert names(vgg, pool.reads) == {"features.2:data", "features.4:data", "features.5:data gradient"}
    assert not [name for name in sizes(vgg, Role.INTERNAL) if name.startswith("features")]


def test_dropout_keeps_its_noise_in_addition_to_its_output(residual: TaskGraph) -> None:
    assert sizes(residual, Role.INTERNAL)["drop:noise"] == 4 * 2 * 32
    assert sizes(residual, Role.ACTIVATION)["drop:data"] == 4 * 2 * 32
    [drop] = tasks_of(residual, "drop", Phase.BACKWARD)
    assert names(residual, drop.reads) == {"drop:noise", "classifier:data gradient"}


def test_batch_norm_is_one_layer_that_keeps_its_input_and_two_vectors(residual: TaskGraph) -> None:
    inside = {name: size for name, size in sizes(residual, Role.INTERNAL).items() if name.startswith("bn")}
    assert inside == {"bn:mean": 16, "bn:inverse deviation": 16}
    [norm] = tasks_of(residual, "bn", Phase.BACKWARD)
    received = "add:gradient of its part", "add:data gradient"
    assert names(residual, norm.reads) - set(received) == {
        *inside, "second:data", "bn.weight", "bn.bias", "bn.weight:gradient", "bn.bias:gradient",
    }  # fmt: skip
    assert names(residual, norm.writes) == {"bn:data gradient", "bn.weight:gradient", "bn.bias:gradient"}


def test_relu_is_in_place_behind_a_batch_norm(residual: TaskGraph) -> None:
    assert "relu:data" not in sizes(residual, Role.ACTIVATION)
    [relu] = tasks_of(residual, "relu", Phase.BACKWARD)
    assert "bn:data" in names(residual, relu.reads)
    assert not relu.creates


def test_branches_sum_their_gradients_in_one_of_their_own(residual: TaskGraph) -> None:
    [total] = tasks_of(residual, "first:sum of gradients", Phase.BACKWARD)
    assert total.kind is Kind.ADD
    assert len(total.reads) == 3  # concatenation, sum, convolution


def test_a_first_batch_norm_has_gradients_of_its_factors_alone() -> None:
    module = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 10))
    graph = lower(module, 2, 3, 2, 2)
    [norm] = tasks_of(graph, "0", Phase.BACKWARD)
    assert norm.gradient_of is GradientOf.WEIGHT
    assert names(graph, norm.writes) == {"0.weight:gradient", "0.bias:gradient"}
