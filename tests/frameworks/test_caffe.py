"""Memory of networks under Caffe, counted from first principles, without fitted constants."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.core import configuration
from membench.core.errors import UnsupportedModel
from membench.core.graph.task_graph import GradientOf, Kind, Phase, Role, TaskGraph
from membench.core.hardware.efficiency import Efficiency
from membench.core.step.workload import Workload
from membench.core.units import MIB
from membench.cost.convolution import ConvolutionAlgorithm
from membench.cost.roofline import RooflineCost
from membench.frameworks.caffe import CAFFE, Caffe
from membench.frameworks.lowering import lower_layers
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import peak_bytes
from membench.strategies.base import strategies
from membench.strategies.network_wide import NetworkWide
from membench.strategies.pytorch import PyTorch
from tests.helpers.planning.graphs import COST, Doubling, captured, captured_model, held, names, sizes, tasks_of

BARE = Caffe(Efficiency(1.0, 1.0), context_bytes=0, group_bytes=0, prefetched_batches=1)
MAPS = frozenset({Role.ACTIVATION, Role.GRADIENT})
NAMES = [
    "lenet", "cifar10_quick", "digits_cnn", "alexnet", "caffenet", "vgg16", "googlenet", "resnet34", "resnet50",
    "resnet56_cifar", "wrn16_10",
]  # fmt: skip
SOME = {"lenet", "alexnet", "googlenet", "wrn16_10"}
"""One of each kind: a chain, groups, branches, additions."""


@pytest.fixture(scope="module")
def lowered() -> Callable[[str], TaskGraph]:
    graphs: dict[str, TaskGraph] = {}

    def of(name: str) -> TaskGraph:
        if name not in graphs:
            batch_size = configuration.read("model", name)["batch_size"]
            graphs[name] = BARE.lower(captured_model(name, batch_size))
        return graphs[name]

    return of


def lower(module: nn.Module, *shape: int, framework: Caffe | None = None) -> TaskGraph:
    """Lower a network of ten classes; without a framework, one without overhead."""
    return (framework or BARE).lower(captured(module, *shape))


def bottleneck_network_bytes(blocks_per_stage: list[int], batch_size: int) -> tuple[int, int]:
    """Return data and gradients of an ImageNet bottleneck network, without and with a gradient for each reader."""
    maps = [64 * 112 * 112, 64 * 56 * 56]  # first convolution and pooling
    shared = [64 * 56 * 56]
    side, width = 56, 64
    for stage, blocks in enumerate(blocks_per_stage):
        side, width = (56, 64) if stage == 0 else (side // 2, 2 * width)
        narrow, wide = width * side**2, 4 * width * side**2
        maps += blocks * [narrow, narrow, wide, wide] + [wide]  # three convolutions and a sum; one projection
        shared += blocks * [wide]
    maps += [4 * width, 1000]  # global pooling, classifier
    data = 4 * batch_size * sum(maps)
    return 2 * data, 2 * data + 2 * 4 * batch_size * sum(shared[:-1])  # the last sum has one reader


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SOME else pytest.mark.exhaustive) for name in NAMES]
)
def test_every_strategy_can_schedule_it(name: str, lowered: Callable[[str], TaskGraph]) -> None:
    """The checker proves that what a task reads was written before, and is still there."""
    graph = lowered(name)
    schedule = NetworkWide().schedule(graph, COST, None)
    validate(schedule)
    assert schedule.peak_bytes == graph.external_bytes + held(graph, *MAPS, Role.INTERNAL, Role.LOSS)
    assert peak_bytes(schedule, MAPS) == held(graph, *MAPS)
    for strategy in set(strategies().values()) - {PyTorch}:
        other = strategy().schedule(graph, COST, None)
        validate(other)
        added_bytes = held(other.graph, *MAPS) - held(graph, *MAPS)  # masks, encoded forms
        added_bytes += other.graph.overhead_bytes - graph.overhead_bytes  # what encoding stages
        assert other.peak_bytes <= schedule.peak_bytes + max(0, added_bytes)


@pytest.mark.parametrize("name", ["lenet", "cifar10_quick", "alexnet", "caffenet", "vgg16", "digits_cnn"])
def test_a_chain_has_twice_its_data(name: str, lowered: Callable[[str], TaskGraph]) -> None:
    graph = lowered(name)
    assert held(graph, Role.GRADIENT) == held(graph, Role.ACTIVATION)


def test_lenet_blob_by_blob(lowered: Callable[[str], TaskGraph]) -> None:
    """Caffe's own blobs: conv1, pool1, conv2, pool2, ip1 (ReLU in place), ip2."""
    graph = lowered("lenet")
    floats = {"conv1": 20 * 24 * 24, "pool1": 20 * 12 * 12, "conv2": 50 * 8 * 8, "pool2": 50 * 4 * 4, "ip1": 500}
    floats["ip2"] = 10
    expected = {f"{name}:data": 4 * 64 * count for name, count in floats.items()}
    assert sizes(graph, Role.ACTIVATION) == expected
    indices = {f"{name}:index": 4 * 64 * floats[name] for name in ("pool1", "pool2")}
    assert sizes(graph, Role.INTERNAL) == indices | {"loss:probabilities": 4 * 64 * 10}


def test_activations_of_resnet50(lowered: Callable[[str], TaskGraph]) -> None:
    graph = lowered("resnet50")
    alone, with_splits = bottleneck_network_bytes([3, 4, 6, 3], 32)
    assert 2 * held(graph, Role.ACTIVATION) == alone
    assert held(graph, *MAPS) == with_splits
    assert sizes(graph, Role.ACTIVATION)["conv1:data"] == 98 * MIB
    assert max(sizes(graph, Role.ACTIVATION).values()) == 98 * MIB


def test_batch_norm_holds_four_activations_in_addition_to_its_convolution(lowered: Callable[[str], TaskGraph]) -> None:
    inside = sizes(lowered("resnet50"), Role.INTERNAL)
    for what in ("bn1:normalized", "bn1:deviations", "bn1:saved gradient", "bn1:Scale:input"):
        assert inside[what] == 98 * MIB


@pytest.mark.exhaustive
def test_resnet1001_and_1517_have_the_sizes_of_the_paper(lowered: Callable[[str], TaskGraph]) -> None:
    """Figure 9 implies 69,045 MB for ResNet-1001 (759.5 MB are a saving of 98.9 %), and the text gives roughly 100 GB
    for 1517. 69,261 MiB is the hand count of a network that halves its feature map one convolution later."""
    graph = lowered("resnet1001")
    alone, with_splits = bottleneck_network_bytes([3, 57, 270, 3], 32)
    assert (2 * held(graph, Role.ACTIVATION), held(graph, *MAPS)) == (alone, with_splits)
    assert held(graph, *MAPS) / MIB == pytest.approx(69_045, rel=0.005)
    assert held(graph, *MAPS) / MIB == pytest.approx(69_261, rel=0.01)
    assert alone / MIB == pytest.approx(49_472, rel=0.005)
    deepest = lowered("resnet1517")
    assert held(deepest, *MAPS) == bottleneck_network_bytes([3, 83, 416, 3], 32)[1]
    assert held(deepest, *MAPS) / 1024 / MIB == pytest.approx(100.3, abs=0.2)
    assert len(deepest.tasks) / len(graph.tasks) == pytest.approx(1517 / 1001, rel=0.01)
    validate(NetworkWide().schedule(deepest, COST, None))


def test_the_hand_count_scales_to_the_deep_networks_of_the_paper() -> None:
    """The same count as above, without capturing a thousand layers."""
    alone, with_splits = (size / MIB for size in bottleneck_network_bytes([3, 57, 270, 3], 32))
    assert alone == pytest.approx(49_472, rel=0.005)
    assert with_splits == pytest.approx(69_045, rel=0.005)


def test_weights_have_gradient_and_momentum_for_the_whole_run() -> None:
    graph = lower(nn.Sequential(nn.Flatten(), nn.Linear(12, 10)), 4, 3, 2, 2)
    assert held(graph, Role.WEIGHT) == 4 * (12 * 10 + 10)
    assert held(graph, Role.OPTIMIZER_STATE) == 2 * held(graph, Role.WEIGHT)
    [weight_gradient] = [task for task in graph.tasks if task.gradient_of is GradientOf.WEIGHT]
    assert names(graph, weight_gradient.writes) == {"1.weight:gradient", "1.bias:gradient"}
    assert graph.external_bytes == 3 * held(graph, Role.WEIGHT) + held(graph, Role.INPUT, Role.LABEL)


def test_a_frozen_weight_has_neither_gradient_nor_momentum() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 10))
    module[0].requires_grad_(requires_grad=False)
    graph = lower(module, 2, 3, 4, 4)
    assert set(sizes(graph, Role.OPTIMIZER_STATE)) == {
        "2.weight:gradient", "2.weight:momentum", "2.bias:gradient", "2.bias:momentum",
    }  # fmt: skip
    assert not tasks_of(graph, "0", Phase.BACKWARD)
    assert not sizes(graph, Role.GRADIENT).keys() & {"2:data gradient"}


def test_a_convolution_reads_its_input_for_the_weight_gradient_only() -> None:
    graph = lower(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 10, 3), nn.Flatten(), nn.Linear(40, 10)), 2, 3, 6, 6)
    _, weight, data = tasks_of(graph, "1", Phase.BACKWARD)
    assert (weight.gradient_of, data.gradient_of) == (GradientOf.WEIGHT, GradientOf.DATA)
    assert "0:data" in names(graph, weight.reads)
    assert names(graph, data.reads) == {"1.weight", "1.bias", "3:data gradient"}
    _, first = tasks_of(graph, "0", Phase.BACKWARD)  # the gradient of the image is not needed
    assert first.gradient_of is GradientOf.WEIGHT
    assert weight.operations == data.operations == 2 * 2 * 10 * 4 * 3 * 3 * 2 * 2


def test_a_bias_has_kernels_of_its_own() -> None:
    """They read and write the output, and read its gradient."""
    graph = lower(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 10)), 2, 3, 6, 6)
    output_bytes, bias_bytes = 2 * 4 * 4 * 4 * 4, 4 * 4
    product, bias = tasks_of(graph, "0", Phase.FORWARD)
    assert "0.bias" not in names(graph, product.reads)
    assert (bias.kind, bias.operations, bias.moved_bytes) == (Kind.OTHER, 0, 2 * output_bytes + bias_bytes)
    gradient, _ = tasks_of(graph, "0", Phase.BACKWARD)
    assert names(graph, gradient.writes) == {"0.bias:gradient"}
    assert output_bytes <= gradient.moved_bytes <= output_bytes + 2 * bias_bytes


@pytest.mark.parametrize(("kernel", "stride", "forward", "backward"), [(2, 2, 6.16, 8.16), (3, 1, 8.11, 12.64)])
def test_pooling_visits_each_number_of_each_window(kernel: int, stride: int, forward: float, backward: float) -> None:
    """In passes over the output and, backward, over the input."""
    pool = nn.MaxPool2d(kernel, stride, padding=kernel // 2 if stride == 1 else 0)
    classifier = nn.Linear(4 * (8 // stride) ** 2, 10)
    graph = lower(nn.Sequential(nn.Conv2d(3, 4, 3), pool, nn.Flatten(), classifier), 2, 3, 10, 10)
    input_bytes = 2 * 4 * 8 * 8 * 4
    output_bytes = input_bytes // stride**2
    [ahead], [back] = (tasks_of(graph, "1", phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert ahead.moved_bytes == pytest.approx(forward * output_bytes, rel=1e-3)
    assert back.moved_bytes == pytest.approx(backward * input_bytes, rel=1e-3)


def test_sums_add_one_input_after_another(lowered: Callable[[str], TaskGraph]) -> None:
    """Of two maps 7 passes, and of the gradients of GoogLeNet's four readers 9."""
    resnet, googlenet = lowered("resnet50"), lowered("googlenet")
    [total] = tasks_of(resnet, "layer1.0.add_", Phase.FORWARD)
    assert total.moved_bytes == 7 * resnet.size_bytes(total.creates)
    [split] = [task for task in googlenet.tasks if task.name == "pool2:split"]
    assert split.moved_bytes == 9 * googlenet.size_bytes(split.creates)


def test_what_each_backward_pass_reads(lowered: Callable[[str], TaskGraph]) -> None:
    alexnet = lowered("alexnet")
    [relu] = tasks_of(alexnet, "relu1", Phase.BACKWARD)
    assert names(alexnet, relu.reads) == {"conv1:data", "norm1:data gradient"}
    assert not relu.creates
    [norm] = tasks_of(alexnet, "norm1", Phase.BACKWARD)
    assert names(alexnet, norm.reads) == {"conv1:data", "norm1:data", "pool1:data gradient"}
    [pool] = tasks_of(alexnet, "pool1", Phase.BACKWARD)
    assert names(alexnet, pool.reads) == {"pool1:index", "conv2:data gradient"}
    [dropout] = tasks_of(alexnet, "drop6", Phase.BACKWARD)
    assert names(alexnet, dropout.reads) == {"drop6:random numbers", "fc7:data gradient"}
    [loss] = tasks_of(alexnet, "loss", Phase.BACKWARD)
    assert names(alexnet, loss.reads) == {"loss:probabilities", "target0"}


def test_batch_norm_and_scale_in_place() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 10)
    )
    graph = lower(module, 2, 3, 4, 4)
    assert set(sizes(graph, Role.ACTIVATION)) == {"0:data", "4:data"}
    weight, scale = tasks_of(graph, "1:Scale", Phase.BACKWARD)
    assert {"1:Scale:input", "4:data gradient"} <= names(graph, weight.reads)
    assert names(graph, scale.reads) == {"1.weight", "1.bias", "4:data gradient"}
    [norm] = tasks_of(graph, "1", Phase.BACKWARD)
    assert names(graph, norm.reads) == {"1:normalized", "1:deviations", "4:data gradient"}
    assert names(graph, norm.creates) == {"1:saved gradient"}
    moved = {task.name: task.moved_bytes for task in graph.tasks if task.kind in (Kind.BATCH_NORM, Kind.SCALE)}
    assert sum(moved.values()) == 42 * (4 * 2 * 4 * 2 * 2)


class Residual(nn.Module):
    """A pre-activation block: its input has two readers, one of them a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.bn = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 1)
        self.classifier = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        return self.classifier(torch.flatten(x + self.second(self.bn(x)), 1))


def test_a_batch_norm_is_not_in_place_where_its_input_has_another_reader() -> None:
    graph = lower(Residual(), 2, 3, 2, 2)
    map_bytes = 4 * 2 * 4 * 2 * 2
    assert sizes(graph, Role.ACTIVATION) == {
        "first:data": map_bytes, "bn:data": map_bytes, "second:data": map_bytes, "add:data": map_bytes,
        "classifier:data": 4 * 2 * 10,
    }  # fmt: skip
    assert "bn:saved gradient" not in sizes(graph, Role.INTERNAL)


def test_split_sums_one_gradient_for_each_reader() -> None:
    graph = lower(Residual(), 2, 3, 2, 2)
    [split] = tasks_of(graph, "first:split", Phase.BACKWARD)
    assert names(graph, split.reads) == {"add:gradient of its part", "bn:gradient of its part"}
    assert names(graph, split.creates) == {"first:split:gradient"}
    assert held(graph, Role.GRADIENT) == held(graph, Role.ACTIVATION) + 2 * 4 * 2 * 4 * 2 * 2


def test_a_sum_of_a_value_with_itself_has_two_readers() -> None:
    graph = lower(Doubling(), 2, 4)
    [split] = tasks_of(graph, "relu:split", Phase.BACKWARD)
    assert len(split.reads) == 2


def test_googlenet_keeps_its_poolings_and_has_three_losses(lowered: Callable[[str], TaskGraph]) -> None:
    graph = lowered("googlenet")
    activations = sizes(graph, Role.ACTIVATION)
    # of the same size as its input, and a layer all the same
    assert activations["inception3a.pool:data"] == 4 * 32 * 192 * 28 * 28
    assert set(sizes(graph, Role.LOSS)) == {"loss:data", "loss2:data", "loss3:data"}
    largest = max(activations, key=activations.__getitem__)
    assert largest == "conv1.conv:data"
    concatenations = [task for task in graph.tasks if task.kind is Kind.CONCATENATE and task.phase is Phase.BACKWARD]
    assert len(concatenations) == 9 * 4


def test_a_pooling_that_changes_nothing_is_not_a_layer(lowered: Callable[[str], TaskGraph]) -> None:
    assert "avgpool:data" not in sizes(lowered("vgg16"), Role.ACTIVATION)


def test_overhead_is_the_context_the_groups_of_convolutions_and_the_batches_to_come() -> None:
    framework = Caffe(Efficiency(1.0, 1.0), context_bytes=1000, group_bytes=100, prefetched_batches=4)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 10))
    batch = 2 * 3 * 6 * 6 * 4 + 2 * 8
    assert lower(module, 2, 3, 6, 6, framework=framework).overhead_bytes == 1000 + 3 * 100 + 3 * batch


def test_a_weight_is_an_allocation_of_its_own_and_so_are_its_gradient_and_momentum() -> None:
    """The 3x3 convolution of a bottleneck of 256 channels has 2.25 MiB, which become 3."""
    module = nn.Sequential(nn.Conv2d(256, 256, 3, bias=False), nn.Flatten(), nn.Linear(256, 10))
    assert lower(module, 1, 256, 3, 3).overhead_bytes == 3 * 3 * MIB // 4


def test_an_unknown_layer_is_named() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 10))
    with pytest.raises(UnsupportedModel, match="'2' is not supported: Caffe has no layer that computes gelu"):
        lower(module, 2, 4)


def test_an_unknown_loss_is_named() -> None:
    inputs, targets = torch.randn(2, 4), torch.randn(2, 3)
    workload = Workload("regression", nn.Linear(4, 3), nn.MSELoss(), (inputs,), (targets,))
    with pytest.raises(UnsupportedModel, match="'loss'"):
        BARE.lower(capture(workload).graph)


def test_a_pooling_of_clips_keeps_an_index_of_each_maximum() -> None:
    module = nn.Sequential(nn.Conv3d(3, 4, 1), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(4 * 2 * 3 * 3, 10))
    graph = lower(module, 2, 3, 4, 6, 6)
    kept = [block.size_bytes for block in graph.blocks if block.name.endswith(":index")]
    assert kept == [2 * 4 * 2 * 3 * 3 * 4]


@pytest.mark.parametrize(("name", "batch_size"), [("cifar10_quick", 100), ("alexnet", 256), ("googlenet", 32)])
def test_in_caffe_s_workspace_every_convolution_has_one_algorithm(name: str, batch_size: int) -> None:
    """So one rate by pass holds for all: of cuDNN 4's, by torch7's rates, FFT would be faster, but needs more room."""
    cost = RooflineCost(configuration.load("device", "k40m"), configuration.load("framework", "torch7").efficiency)
    graph = lower_layers(captured_model(name, batch_size), CAFFE)
    fastest, fastest_in_limit = set(), set()
    for task in graph.tasks:
        if task.convolution:
            algorithms = cost.algorithms(task)  # the fastest first
            fastest.add(algorithms[0].name)
            fastest_in_limit.add(next(one.name for one in algorithms if one.workspace_bytes <= 8 * MIB))
    assert fastest_in_limit == {ConvolutionAlgorithm.IMPLICIT_PRECOMP_GEMM}
    assert ConvolutionAlgorithm.FFT in fastest
