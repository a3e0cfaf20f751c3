"""Kernels of operators: families, products and bytes, of networks captured as CUDA runs them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.validation.programs.nf4 import Nf4Linear
from membench.capture.capture import capture
from membench.capture.trace import ANY_GPU
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import GradientOf, Kind, Phase, Task, TaskGraph
from membench.core.step.workload import Workload
from membench.cost.kernels import Family, Kernel, kernels_of
from membench.cost.products import Product
from membench.planning.rewrites.rewrite import join_convolution_backward
from tests.helpers.planning.graphs import COST


def graph_of(
    *layers: nn.Module, channels: int = 8, precision: Precision = Precision.AMP_FP16, **options: bool
) -> TaskGraph:
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    batch = (torch.randn(2, channels, 16, 16),), (torch.randint(8, (2,)),)
    workload = Workload("net", module, nn.CrossEntropyLoss(), *batch, precision=precision, **options)
    return capture(workload, ANY_GPU).graph


def kernels(graph: TaskGraph, wanted: Callable[[Task], bool]) -> list[Kernel]:
    return [kernel for task in graph.tasks if wanted(task) for kernel in kernels_of(task)]


def convolutions(graph: TaskGraph) -> list[Kernel]:
    return kernels(graph, lambda task: task.convolution is not None)


@pytest.mark.parametrize(
    ("outputs", "groups", "channels_last", "family"),
    [
        (16, 1, False, Family.CONVOLUTION),
        (8, 8, False, Family.DEPTHWISE),
        (16, 8, True, Family.DEPTHWISE),
        (8, 2, False, Family.GROUPED),
        (8, 2, True, Family.NARROW),
        (16, 2, True, Family.GROUPED),  # four inputs and eight outputs for each group
    ],
)
def test_convolutions_have_the_kernels_of_their_groups_and_layout(
    outputs: int, groups: int, channels_last: bool, family: Family
) -> None:
    layers = nn.Conv2d(8, 8, 1), nn.Conv2d(8, outputs, 3, padding=1, groups=groups), nn.Conv2d(outputs, 8, 1)
    found = convolutions(graph_of(*layers, channels_last=channels_last))
    own = [kernel for kernel in found if kernel.operations == 2 * 2 * 256 * outputs * 8 // groups * 9]
    assert [kernel.family for kernel in own] == [family] * 3  # forward, and both gradients, all of as many operations
    assert [kernel.is_weight_gradient for kernel in own] == [False, True, False]
    assert {kernel.precision for kernel in own} == {Precision.FP16}
    assert all(kernel.channels_last == channels_last for kernel in own)
    activations_bytes = 2 * 2 * 256 * (8 + outputs)
    assert {kernel.layout_bytes for kernel in own} == {0 if channels_last else 2 * activations_bytes}


def test_a_convolution_and_its_gradients_are_products_of_the_same_matrices() -> None:
    found = convolutions(graph_of(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 32, 3, padding=1)))
    wide = [kernel.product for kernel in found if kernel.operations == 2 * 2 * 256 * 32 * 8 * 9]
    pixels = 2 * 256
    assert wide == [Product(1, pixels, 32, 72), Product(1, 32, 72, pixels), Product(1, pixels, 8, 32 * 9)]


def test_products_of_linear_layers_have_the_shapes_of_their_factors() -> None:
    graph = graph_of(nn.Flatten(), nn.Linear(8 * 256, 64), nn.Unflatten(1, (64, 1, 1)))
    found = [kernel.product for kernel in kernels(graph, lambda task: task.kind is Kind.LINEAR)]
    assert found == [Product(1, 2, 64, 2048), Product(1, 64, 2048, 2)]


def test_an_operator_in_place_reads_and_writes() -> None:
    inplace, outside = (
        kernels(
            graph_of(nn.Conv2d(8, 8, 1), nn.ReLU(inplace)),
            lambda task: "relu" in task.name and task.phase is Phase.FORWARD,
        )
        for inplace in (True, False)
    )
    assert (
        [kernel.moved_bytes for kernel in inplace]
        == [kernel.moved_bytes for kernel in outside]
        == [2 * 2 * 8 * 256 * 2]
    )


def test_batch_norm_passes_over_its_input_twice() -> None:
    found = kernels(graph_of(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)), lambda task: task.kind is Kind.BATCH_NORM)
    maps_bytes = 2 * 8 * 256 * 2
    assert [kernel.family for kernel in found] == [Family.NORMALIZATION] * 2
    assert [round(kernel.moved_bytes / maps_bytes) for kernel in found] == [3, 5]


def test_a_change_of_layout_is_a_copy() -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.transpose(1, 2).contiguous()

    found = kernels(graph_of(nn.Conv2d(8, 16, 1), Turned(), nn.Conv2d(16, 8, 1)), lambda task: "clone" in task.name)
    assert found and {kernel.family for kernel in found} == {Family.COPY}


@pytest.mark.parametrize(
    ("kind", "family"),
    [(Kind.LINEAR, Family.PRODUCT), (Kind.BATCH_NORM, Family.NORMALIZATION), (Kind.RELU, Family.ELEMENTWISE)],
)
def test_a_task_without_a_call_has_the_kernel_of_its_kind(kind: Kind, family: Family) -> None:
    task = Task(0, "task", kind, Phase.FORWARD, 0, (), (), (), operations=70, moved_bytes=30)
    assert kernels_of(task) == (Kernel(family, Precision.FP32, 30, 70),)


def test_gradients_of_grouped_weights_have_the_operations_of_the_forward_pass() -> None:
    """Torch's own count for them leaves out the groups."""
    graph = graph_of(nn.Conv2d(8, 8, 3, groups=4), nn.Conv2d(8, 8, 3, groups=4))
    weight = kernels(graph, lambda task: task.convolution is not None and task.gradient_of is GradientOf.WEIGHT)
    forward = kernels(graph, lambda task: task.convolution is not None and task.phase is Phase.FORWARD)
    assert sorted(kernel.operations for kernel in weight) == sorted(kernel.operations for kernel in forward)


@pytest.mark.parametrize("channels_last", [False, True])
def test_a_backward_pass_in_one_call_has_the_kernels_of_its_two_halves(channels_last: bool) -> None:
    """Plain PyTorch computes both gradients of a convolution in one call; of the first one, only the weight's."""
    layers = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 8, 3, bias=False)
    graph = graph_of(*layers, precision=Precision.FP16, channels_last=channels_last)
    joined = join_convolution_backward(graph, COST)
    assert len(joined.tasks) == len(graph.tasks) - 1
    halves, both = (sorted(convolutions(each), key=lambda kernel: str(kernel.product)) for each in (graph, joined))
    assert [kernel.moved_bytes for kernel in both] == pytest.approx([kernel.moved_bytes for kernel in halves], rel=0.1)
    assert [replace(kernel, moved_bytes=0) for kernel in both] == [replace(kernel, moved_bytes=0) for kernel in halves]


@pytest.mark.parametrize(("double", "passes"), [(False, 1), (True, 2)])
def test_dequantized_weights_have_kernels_of_their_own(double: bool, passes: int) -> None:
    pytest.importorskip("bitsandbytes")
    module = nn.Sequential(nn.Linear(128, 128), Nf4Linear(128, 256, double=double))
    batch = (torch.randn(2, 128),), (torch.randint(8, (2,)),)
    graph = capture(Workload("net", module, nn.CrossEntropyLoss(), *batch), ANY_GPU).graph
    found = [kernel for kernel in kernels(graph, lambda _: True) if kernel.family is Family.DEQUANTIZATION]
    assert len(found) == 2 * passes  # in the forward and the backward pass
    assert max(kernel.moved_bytes for kernel in found) == 128 * 256 * (1 / 2 + 4 / 64 + 2)


def test_a_bias_and_its_gradient_have_kernels_of_their_own_beside_a_convolution() -> None:
    """Two kernels more: the bias's sum and its gradient; depthwise kernels add the bias themselves."""
    with_bias, without = (
        convolutions(graph_of(nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 16, 3, padding=1, bias=bias)))
        for bias in (True, False)
    )
    output_bytes = 2 * 16 * 256 * 2
    further = [kernel for kernel in with_bias if kernel.family is not Family.CONVOLUTION]
    assert [(kernel.family, kernel.moved_bytes) for kernel in further] == [
        (Family.ELEMENTWISE, 2 * output_bytes),
        (Family.REDUCTION, output_bytes),
    ]
    assert {kernel.family for kernel in without} == {Family.CONVOLUTION}
    depthwise = convolutions(graph_of(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1, bias=False)))
    assert {kernel.family for kernel in depthwise} == {Family.DEPTHWISE, Family.CONVOLUTION}


@pytest.mark.parametrize("groups", [1, 8])
def test_images_with_gaps_are_copied_before_a_convolution_and_before_its_gradients(groups: int) -> None:
    """A convolution of half of the channels reads a part of each image, and its gradient is a part of one."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([part(half) for part, half in zip(self.parts, x.chunk(2, 1), strict=True)], 1)

    found = convolutions(graph_of(nn.Conv2d(8, 16, 1), Halves()))
    half_bytes = 2 * 8 * 256 * 2
    copied = [kernel.moved_bytes // half_bytes for kernel in found if kernel.family is Family.COPY]
    assert copied == [2, 2, 4, 2, 4, 2]  # forward; then the gradient of each filter and of its images
    whole = convolutions(graph_of(nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=groups)))
    assert Family.COPY not in {kernel.family for kernel in whole}


@pytest.mark.parametrize(("precision", "load_bytes"), [(Precision.AMP_FP16, [8, 8]), (Precision.AMP_BF16, [2, 4])])
def test_batch_norm_has_a_thread_block_for_each_channel(precision: Precision, load_bytes: list[int]) -> None:
    """cuDNN's in half precision, PyTorch's own in bfloat16."""

    def found(*, channels_last: bool) -> list[Kernel]:
        layers = nn.Conv2d(8, 24, 1), nn.BatchNorm2d(24), nn.Conv2d(24, 8, 1)
        graph = graph_of(*layers, precision=precision, channels_last=channels_last)
        return kernels(graph, lambda task: task.kind is Kind.BATCH_NORM)

    contiguous = found(channels_last=False)
    assert [kernel.load_bytes for kernel in contiguous] == load_bytes
    assert {kernel.blocks for kernel in contiguous} == {24}
    assert {(kernel.load_bytes, kernel.blocks) for kernel in found(channels_last=True)} == {(0, None)}


@pytest.mark.parametrize(("columns", "aligned_bytes"), [(64, 16), (60, 8), (62, 4), (63, 2)])
def test_products_know_how_their_rows_are_aligned(columns: int, aligned_bytes: int) -> None:
    layers = nn.Flatten(), nn.Linear(8 * 256, columns), nn.Unflatten(1, (columns, 1, 1))
    found = kernels(graph_of(*layers), lambda task: task.kind is Kind.LINEAR)
    assert {kernel.aligned_bytes for kernel in found} == {aligned_bytes}


def test_a_convolution_of_one_pixel_is_pointwise_if_it_reads_every_pixel() -> None:
    found = convolutions(graph_of(nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 8, 1, stride=2, bias=False)))
    assert sorted(kernel.is_pointwise for kernel in found) == [False] * 3 + [True] * 2


def test_compiled_code_adds_a_bias_in_a_kernel_that_there_is_in_any_case() -> None:
    graph = graph_of(nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 16, 3, padding=1))
    compiled = replace(graph, tasks=tuple(replace(task, is_compiled=True) for task in graph.tasks))
    assert {kernel.family for kernel in convolutions(compiled)} == {Family.CONVOLUTION}
    assert len(convolutions(graph)) == len(convolutions(compiled)) + 2
