"""Captures as CUDA runs a step, on a machine that does not need to have a GPU."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.capture.trace import ANY_GPU
from membench.core.graph.call import Value
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind, Phase, Role, Task, TaskGraph
from membench.core.step.workload import Workload
from tests.helpers.kernels.operators import Seen, operators


class Network(nn.Module):
    """Layers that autocast treats alike on the CPU and on a GPU, one of them used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU()
        self.head = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.relu(self.conv(self.relu(self.conv(images))))
        return self.head(maps.mean((2, 3)))


def workload(
    module: nn.Module, *shape: int, precision: Precision | None = None, channels_last: bool = False
) -> Workload:
    with torch.device("meta"):
        inputs, targets = torch.empty(shape), torch.empty(shape[0], dtype=torch.int64)
        module = module.to("meta")
    loss = nn.functional.cross_entropy
    return Workload("network", module, loss, (inputs,), (targets,), precision=precision, channels_last=channels_last)


def test_autocast_casts_as_a_run_on_the_cpu_does_where_its_lists_agree() -> None:
    module, images, targets = Network(), torch.randn(2, 4, 6, 6), torch.tensor([0, 1])
    with Seen() as seen, torch.autocast("cpu", torch.bfloat16):
        mean_loss(module(images), targets)
    work = workload(Network(), 2, 4, 6, 6, precision=Precision.AMP_BF16)
    work = replace(work, loss=mean_loss)
    graph = capture(work, ANY_GPU).graph
    assert operators(graph, Phase.FORWARD) + operators(graph, Phase.LOSS) == seen.names
    assert operators(capture(work, torch.device("cpu")).graph) == operators(graph)


def mean_loss(output: Tensor, targets: Tensor) -> Tensor:
    return output.mean() + 0 * targets.sum()


def test_autocast_applies_within_composites_and_leaves_them_their_own_dtypes() -> None:
    """Cross entropy keeps the logits' dtype in its softmax; of what follows, ``nll_loss`` is on the GPU's list."""
    graph = capture(workload(Network(), 2, 4, 6, 6, precision=Precision.AMP_FP16), ANY_GPU).graph
    assert operators(graph, Phase.LOSS) == ["_log_softmax", "_to_copy", "nll_loss_forward"]
    softmax = next(task for task in graph.tasks if task.name.endswith(":_log_softmax"))
    assert softmax.precision is Precision.FP16
    assert graph.loss is not None and graph.loss.dtype is torch.float32


def casts_of(graph: TaskGraph, role: Role) -> Counter[str]:
    return Counter(
        graph.blocks[task.reads[0]].name
        for task in graph.tasks
        if task.name.endswith("_to_copy") and graph.blocks[task.reads[0]].role is role
    )


def test_each_weight_is_cast_once_and_its_gradient_is_cast_back() -> None:
    graph = capture(workload(Network(), 2, 4, 6, 6, precision=Precision.AMP_FP16), ANY_GPU).graph
    names = ("conv.weight", "conv.bias", "head.weight", "head.bias")
    assert casts_of(graph, Role.WEIGHT) == Counter(names)
    gradients = {name: value for name, value in graph.gradients if value is not None}
    assert {value.dtype for value in gradients.values()} == {torch.float32}
    made = {block: task for task in graph.tasks for block in task.creates}
    assert all(made[gradients[name].block].name.endswith("_to_copy") for name in names)


def test_autocast_is_off_after_a_capture() -> None:
    before = [torch.get_autocast_dtype(device) for device in ("cpu", "cuda")]
    capture(workload(Network(), 2, 4, 6, 6, precision=Precision.AMP_BF16), ANY_GPU)
    assert not torch.is_autocast_enabled("cuda") and not torch.is_autocast_enabled("cpu")
    assert [torch.get_autocast_dtype(device) for device in ("cpu", "cuda")] == before


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
def test_half_precision_halves_weights_activations_and_inputs(precision: Precision) -> None:
    single, half = (
        capture(workload(Network(), 2, 4, 6, 6, precision=each), ANY_GPU).graph for each in (Precision.FP32, precision)
    )
    for role in (Role.WEIGHT, Role.INPUT, Role.ACTIVATION, Role.WEIGHT_GRADIENT):
        sizes = [sum(block.size_bytes for block in graph.blocks if block.role is role) for graph in (single, half)]
        assert sizes[0] == 2 * sizes[1] > 0
    assert {task.precision for task in half.tasks if task.kind is Kind.CONVOLUTION} == {precision}


PRODUCTS = {
    None: "tf32 fp32",
    Precision.FP32: "fp32 fp32",
    Precision.TF32: "tf32 tf32",
    Precision.AMP_BF16: "bf16 bf16",
}
"""Precisions of convolutions and of other products."""


@pytest.mark.parametrize("precision", PRODUCTS)
def test_products_have_the_precision_of_their_factors(precision: Precision | None) -> None:
    graph = capture(workload(Network(), 2, 4, 6, 6, precision=precision), ANY_GPU).graph
    found = [{task.precision for task in graph.tasks if task.kind is kind} for kind in (Kind.CONVOLUTION, Kind.LINEAR)]
    assert found == [{Precision(name)} for name in PRODUCTS[precision].split()]
    on_cpu = capture(workload(Network(), 2, 4, 6, 6)).graph
    assert {task.precision for task in on_cpu.tasks} == {Precision.FP32}


class Normalized(nn.Module):
    """Batch norm and dropout, whose kernels differ on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.norm(self.conv(images))
        return self.head(nn.functional.dropout(maps, 0.5).mean((2, 3)))


def sizes_of(graph: TaskGraph, operator: str) -> list[int]:
    [task] = [task for task in graph.tasks if task.name.endswith(operator)]
    return [graph.blocks[block].size_bytes for block in task.creates]


@pytest.mark.skipif(not torch.backends.cudnn.is_available() and torch.version.cuda is None, reason="no cuDNN")
@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norm_is_that_of_cudnn_with_its_assumed_reserve(channels_last: bool) -> None:
    work = workload(Normalized(), 2, 4, 6, 6, precision=Precision.AMP_FP16, channels_last=channels_last)
    output, mean, deviation, *reserve = sizes_of(capture(work, ANY_GPU).graph, "cudnn_batch_norm")
    elements = 2 * 8 * 4 * 4
    assert (output, mean, deviation) == (2 * elements, 32, 32)
    assert sum(reserve) == (elements // 8 if channels_last else 0)


@pytest.mark.parametrize("precision", [None, Precision.AMP_FP16, Precision.AMP_BF16, Precision.BF16])
def test_channels_last_reaches_the_activations(precision: Precision | None) -> None:
    """Also in bfloat16, of which torch's shape functions take cuDNN to have no convolutions where there is no GPU."""
    graph = capture(workload(Normalized(), 2, 4, 6, 6, precision=precision, channels_last=True), ANY_GPU).graph
    [convolution] = [task for task in graph.tasks if task.name == "conv:convolution"]
    assert convolution.call is not None
    images, weight, *_ = convolution.call.args
    [output] = convolution.call.outputs
    for value in (images, weight, output):
        assert isinstance(value, Value) and value.stride[1] == 1


class Formulas(nn.Module):
    """What depends on the device in the backward pass, in views, and in tensors that the model makes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4))

    def forward(self, rows: Tensor) -> Tensor:
        first, _ = (rows @ self.weight).split(2, dim=1)  # the gradient of what is not used is made of zeros
        first = first + torch.arange(2) * torch.ones(2, device=first.device)
        first = first.clone()
        first[:, 0].mul_(2)
        first = torch.empty_like(first).copy_(first)  # whose gradient goes to the device of what was copied
        return Doubled.apply(first)


class Doubled(torch.autograd.Function):
    """An operator with its own gradient, whose result is not its last operator's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        doubled = rows * 2
        ctx.save_for_backward(rows + 1)
        return doubled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return gradient * 2 + rows * 0


def test_formulas_of_gradients_and_own_functions_run() -> None:
    graph = capture(workload(Formulas(), 3, 4), ANY_GPU).graph
    assert graph.gradients[0][1] is not None
    assert "_to_copy" not in operators(graph)
    devices = {value for task in graph.tasks if task.call for name, value in task.call.kwargs if name == "device"}
    assert devices <= {torch.device("cuda", 0)} != set()


class Chosen(nn.Module):
    """A choice by values that are the same in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        positions = torch.arange(4, device=rows.device)
        if (positions.diff() == 1).all():
            rows = rows[:, positions.nonzero().flatten()].sum(1, keepdim=True) + rows
        return self.head(rows)


def test_values_of_constants_on_the_gpu_are_known() -> None:
    names = operators(capture(workload(Chosen(), 3, 4), ANY_GPU).graph)
    assert "sum" in names and "addmm" in names


@pytest.mark.parametrize(("is_in_place", "kept_bytes"), [(False, 1), (True, 4)])
def test_dropout_keeps_a_mask_and_in_place_its_factors(is_in_place: bool, kept_bytes: int) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5, inplace=is_in_place))
    graph = capture(workload(module, 8, 4), ANY_GPU).graph
    kept = [block for task in graph.tasks if task.random for block in task.writes][-1]
    assert graph.blocks[kept].size_bytes == 8 * 3 * kept_bytes
    assert any(kept in task.reads for task in graph.tasks if task.phase is Phase.BACKWARD)


def attention_tasks(graph: TaskGraph) -> list[Task]:
    return [task for task in graph.tasks if task.kind is Kind.ATTENTION]


class Encoder(nn.Module):
    """Torch's own transformer layer, which calls attention within a function of `torch.nn.functional`."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(tokens).mean(1))


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("precision", "kernel"), [(None, "efficient"), (Precision.AMP_FP16, "flash")])
def test_attention_is_fused_with_dropout_too(precision: Precision | None, kernel: str, dropout: float) -> None:
    samples, tokens = 2, 512
    graph = capture(workload(Encoder(dropout), samples, tokens, 32, precision=precision), ANY_GPU).graph
    assert [kernel in task.name for task in attention_tasks(graph)] == [True, True]
    scores_bytes = samples * 2 * tokens * tokens  # of one-byte masks for two heads
    assert max(block.size_bytes for block in graph.blocks) < scores_bytes
    forward, backward = attention_tasks(graph)
    assert (forward.random, backward.random) == (dropout > 0, False)
    assert backward.workspace_bytes > 0 == forward.workspace_bytes
    assert {task.name.partition(":")[2] for task in graph.tasks if task.random and task is not forward} == (
        {"native_dropout"} if dropout else set()
    )
