"""Layers in parts compute what they compute as a whole."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import pytest
import torch
import torchvision.models as zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from membench.backends.cpu import CpuBackend
from membench.capture.capture import capture
from membench.core.graph.task_graph import EXTERNAL_ROLES, Kind, Role, TaskGraph
from membench.core.step.workload import Workload
from membench.planning.builder import ScheduleBuilder
from membench.planning.checking.validate import validate
from membench.planning.rewrites.rewrite import keep_on_host
from membench.steps.real.compiled_step import CompiledStep
from membench.strategies.mmcnn.partition import Partitioner, Parts, most_parts, partition

EPSILON = torch.finfo(torch.float32).eps


def in_parts(module: nn.Module, images: Tensor, parts: Callable[[TaskGraph], dict[int, Parts]]) -> Tensor:
    """Run a module in evaluation mode, in parts, with everything of the caller's visiting from the host."""
    work = Workload("network", module.eval(), None, (images,))
    captured = capture(work)
    graph = keep_on_host(captured.graph, EXTERNAL_ROLES)
    split = partition(graph, parts(graph))
    assert len(split.tasks) >= len(graph.tasks)
    builder = ScheduleBuilder("parts", split, budget_bytes=None)
    for task in split.tasks:
        for block in task.reads:
            if split.blocks[block].host_location and not builder.is_resident(block):
                builder.prefetch(block)
        builder.compute(task)
        builder.free_dead()
    schedule = builder.finish()
    validate(schedule)
    backend = CpuBackend(schedule.graph)
    step = CompiledStep(work, captured, schedule, backend)
    result = step(images)
    assert isinstance(result, Tensor)
    backend.close()
    return result


def everywhere(parts: Parts) -> Callable[[TaskGraph], dict[int, Parts]]:
    return lambda graph: {task.index: parts for task in graph.tasks}


def same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and first.numpy().tobytes() == second.numpy().tobytes()


class Behind(nn.Module):
    """A layer behind an element-wise one, so that its input is an activation in bands."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images * 1.0) * 1.0


def within_the_bound(layer: nn.Module, images: Tensor, ours: Tensor, products: int) -> bool:
    """Return whether two sums of the same products differ by no more than rounding in any order allows.

    Either sum of n products is within n * epsilon * sum |x * w| of the exact one (Higham, Section 3.1).
    """
    magnitudes = [p.abs() for p in layer.parameters()]
    absolute = torch.func.functional_call(
        layer, dict(zip(dict(layer.named_parameters()), magnitudes, strict=True)), images.abs()
    )
    return bool(((ours - layer(images)).abs() <= 2 * (products + 1) * EPSILON * absolute).all())


ROWS, CHANNELS = st.integers(1, 9), st.integers(1, 12)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    kernel=st.integers(1, 4), stride=st.integers(1, 3), padding=st.integers(0, 2), dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 3, 6]), size=st.integers(9, 15), rows=ROWS, channels=CHANNELS, bias=st.booleans(),
)  # fmt: skip
def test_a_convolution_in_parts(
    kernel: int, stride: int, padding: int, dilation: int, groups: int, size: int, rows: int, channels: int, bias: bool
) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(6, 12, kernel, stride, padding, dilation, groups, bias)
    images = torch.randn(1, 6, size, size)
    with torch.no_grad():
        ours = in_parts(Behind(layer), images, everywhere(Parts(rows, channels)))
        assert within_the_bound(layer, images, ours, 6 // groups * kernel**2)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(inputs=st.integers(1, 40), outputs=st.integers(1, 30), channels=st.integers(1, 40), bias=st.booleans())
def test_a_linear_layer_in_parts(inputs: int, outputs: int, channels: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer, images = nn.Linear(inputs, outputs, bias), torch.randn(2, inputs)
    with torch.no_grad():
        ours = in_parts(layer, images, everywhere(Parts(channels=channels)))
        assert within_the_bound(layer, images, ours, inputs)


class Squeeze(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images * torch.sigmoid(images.mean((2, 3), keepdim=True))


EXACT = {
    "maximum pooling": lambda: nn.MaxPool2d(3, 2, 1),
    "maximum pooling, rounded up": lambda: nn.MaxPool2d(3, 2, ceil_mode=True),
    "dilated maximum pooling": lambda: nn.MaxPool2d(2, 1, 1, dilation=2),
    "average pooling": lambda: nn.AvgPool2d(3, 2),
    "padded average pooling": lambda: nn.AvgPool2d(3, 2, 1),  # left whole
    "adaptive pooling": lambda: nn.AdaptiveAvgPool2d(3),  # left whole
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "relu6 in place": lambda: nn.ReLU6(inplace=True),
    "hard swish": nn.Hardswish,
    "batch norm": lambda: nn.BatchNorm2d(6),
    "local response normalisation": lambda: nn.LocalResponseNorm(5, 1e-2),
    "local response normalisation in Caffe's AlexNet": lambda: nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0),
    "squeeze and excitation": Squeeze,
    "flatten": nn.Flatten,
}


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=6, deadline=None, derandomize=True)
@given(size=st.integers(7, 15), rows=ROWS, images=st.integers(1, 2))
def test_layers_without_sums_over_channels_are_exact(name: str, size: int, rows: int, images: int) -> None:
    torch.manual_seed(0)
    module, batch = Behind(EXACT[name]()), torch.randn(images, 6, size, size)
    with torch.no_grad():
        ours = in_parts(module, batch, everywhere(Parts(rows)))
        assert same(ours, module(batch))


class Branches(nn.Module):
    """Branches that meet, in place and not, by sum and by concatenation, and slices of channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, images: Tensor) -> Tensor:
        left, right = images.exp(), images * 2
        both = torch.cat([left, nn.functional.max_pool2d(right, 3, 1, 1)], 1)
        both[:, 2:4].mul_(0.5)
        first, second = both.chunk(2, 1)
        both = self.norm(both).add_(torch.cat([second, first], 1)).relu_()
        return (both + both.transpose(2, 3)).flatten(1).cumsum(1)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(ROWS, min_size=20, max_size=20))
def test_layers_may_have_different_parts(rows: list[int]) -> None:
    torch.manual_seed(0)
    module, images = Branches(), torch.randn(1, 4, 9, 9)
    with torch.no_grad():
        ours = in_parts(module, images, lambda g: {t.index: Parts(n) for t, n in zip(g.tasks, rows, strict=False)})
        assert same(ours, module.eval()(images))


def described(graph: TaskGraph) -> list[object]:
    """Return the tasks of a graph in order, independent of the numbers of its blocks."""

    def sizes(blocks: tuple[int, ...]) -> list[tuple[str, int]]:
        return [(graph.blocks[block].name, graph.blocks[block].size_bytes) for block in blocks]

    return [(t.name, t.operations, t.moved_bytes, sizes(t.reads), sizes(t.writes)) for t in graph.tasks]


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.lists(st.lists(ROWS, min_size=20, max_size=20), min_size=2, max_size=4))
def test_what_was_in_parts_before_leaves_no_trace(tries: list[list[int]]) -> None:
    graph = graph_of(Branches(), 1, 4, 9, 9)
    partitioner = Partitioner(graph)
    for rows in tries:
        parts = {t.index: Parts(n) for t, n in zip(graph.tasks, rows, strict=False)}
        pieces = partitioner.pieces(parts)
        assert described(partitioner.graph_of(chain(*pieces))) == described(partition(graph, parts))
        again = partitioner.pieces(parts)
        assert all(one is other for one, other in zip(pieces, again, strict=True))


ONLY_EXHAUSTIVE = [
    pytest.param(name, marks=pytest.mark.exhaustive) for name in ("mobilenet_v2", "densenet121", "efficientnet_b0")
]


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2_x0_5", *ONLY_EXHAUSTIVE])
def test_a_partitioned_network_gives_the_same_output(name: str) -> None:
    torch.manual_seed(0)
    module, images = getattr(zoo, name)(num_classes=10), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        ours = in_parts(module, images, everywhere(Parts(3, 4)))
        theirs = module.eval()(images)
        assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def graph_of(module: nn.Module, *shape: int) -> TaskGraph:
    with torch.device("meta"):
        return capture(Workload("network", module.eval(), None, (torch.empty(shape),))).graph


def test_only_the_matching_weights_come() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    graph = keep_on_host(graph_of(network, 1, 3, 8, 8), frozenset({Role.WEIGHT}))
    split = partition(graph, {0: Parts(rows=2, channels=4)})
    weights = [b for b in split.blocks if b.host_location and b.host_location.block == 0 and b.index != 0]
    assert [b.size_bytes for b in weights] == [graph.blocks[0].size_bytes // 4] * 4
    assert sorted(b.host_location.offset_bytes for b in weights if b.host_location) == [216 * i for i in range(4)]
    convolutions = [t for t in split.tasks if t.kind is Kind.CONVOLUTION]
    assert len(convolutions) == 8
    assert all(len({b.index for b in weights}.intersection(t.reads)) == 1 for t in convolutions)
    assert sum(t.operations for t in convolutions) == graph.tasks[0].operations
    assert all(t.convolution and t.convolution.output_channels == 2 for t in convolutions)
    assert {t.convolution.output_size for t in convolutions if t.convolution} == {(3, 6)}


def test_a_part_reads_the_rows_of_its_window_alone() -> None:
    graph = graph_of(nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 1, 1), nn.ReLU()), 1, 2, 12, 12)
    split = partition(graph, {task.index: Parts(rows=3) for task in graph.tasks})
    gathered = next(t for t in split.tasks if t.kind is Kind.CONCATENATE)
    assert gathered.call is not None
    [rows] = gathered.call.outputs
    assert rows is not None and rows.shape == (1, 2, 5, 12)  # four rows, and one of the next band


def test_the_most_parts_are_rows_and_channels() -> None:
    graph = graph_of(
        nn.Sequential(nn.Conv2d(4, 8, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5)), 1, 4, 8, 8
    )
    assert most_parts(graph) == [Parts(6, 8), Parts(6, 1), Parts(1, 5)]
    simulated = replace(graph, tasks=tuple(replace(task, call=None) for task in graph.tasks))
    assert most_parts(simulated) == [Parts()] * 3
    last = graph_of(nn.Conv2d(4, 8, 3), 1, 4, 8, 8)  # what the caller gets is one tensor
    assert most_parts(last) == [Parts(1, 8)]
