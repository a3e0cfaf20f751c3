"""Captured graphs: layers, the order of gradients, shared storage, sums in place."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from membench.capture.capture import CapturedStep, capture
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import ShapeOf
from membench.core.graph.task_graph import GradientOf, Kind, Phase, Role
from membench.core.step.workload import Workload
from tests.helpers.kernels.operators import Seen, operators


class Block(nn.Module):
    """A residual block with a batch norm, an in-place ReLU and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        inner = self.relu(self.norm(self.conv(images)))
        outer = self.conv(inner) + inner
        return self.head(self.drop(outer).mean((2, 3)))


@pytest.fixture(scope="module")
def captured() -> CapturedStep:
    with torch.device("meta"):
        work = Workload(
            "block",
            Block(),
            nn.functional.cross_entropy,
            (torch.empty(2, 4, 6, 6),),
            (torch.empty(2, dtype=torch.int64),),
        )
        return capture(work)


def test_layers_are_modules_and_functional_calls(captured: CapturedStep) -> None:
    names = [captured.graph.layers[run.layer] for run in captured.graph.forward_layers]
    assert names == ["conv", "norm", "relu", "conv#2", "add", "drop", "mean", "head", "loss"]


def test_the_backward_goes_through_the_same_layers(captured: CapturedStep) -> None:
    graph = captured.graph
    backward = [graph.layers[run.layer] for run in graph.backward_layers]
    assert backward[0] == "loss"
    assert backward.index("head") < backward.index("drop") < backward.index("conv#2") < backward.index("relu")
    assert backward[-1] == "conv"


def test_the_weight_gradient_comes_first_and_the_data_gradient_does_not_read_the_input(captured: CapturedStep) -> None:
    graph = captured.graph
    second = next(run for run in graph.backward_layers if graph.layers[run.layer] == "conv#2")
    weight, data = (task for task in second.tasks if task.kind is Kind.CONVOLUTION)
    assert (weight.gradient_of, data.gradient_of) == (GradientOf.WEIGHT, GradientOf.DATA)
    [inner] = [block for block in weight.reads if graph.blocks[block].role is Role.ACTIVATION]
    assert inner not in data.reads
    assert data.call is not None and isinstance(data.call.args[1], ShapeOf)
    head = next(run for run in graph.backward_layers if graph.layers[run.layer] == "head")
    assert [task.gradient_of for task in head.tasks][-1] is GradientOf.DATA


def test_an_in_place_operator_makes_no_block(captured: CapturedStep) -> None:
    relu = next(task for task in captured.graph.tasks if task.name == "relu:relu_")
    assert relu.creates == ()
    assert relu.reads == relu.writes


def test_running_statistics_are_written(captured: CapturedStep) -> None:
    norm = next(task for task in captured.graph.tasks if task.name == "norm:native_batch_norm")
    written = {captured.graph.blocks[block].name for block in norm.writes}
    assert {"norm.running_mean", "norm.running_var"} <= written


def test_dropout_is_one_random_task_with_a_one_byte_mask(captured: CapturedStep) -> None:
    [drop] = [task for task in captured.graph.tasks if task.random]
    sizes = sorted(captured.graph.blocks[block].size_bytes for block in drop.creates)
    assert sizes == [2 * 4 * 36, 2 * 4 * 36 * 4]


def test_gradients_that_meet_are_added_onto_the_first(captured: CapturedStep) -> None:
    sums = [t for t in captured.graph.tasks if t.phase is Phase.BACKWARD and t.kind is Kind.ADD]
    # Of the branch; of the weight and of the bias that are used twice.
    assert [len(task.creates) for task in sums] == [0, 0, 0]


def test_the_gradient_of_a_shared_weight_is_one_block_from_its_first_use_on(captured: CapturedStep) -> None:
    graph = captured.graph
    gradient = dict(graph.gradients)["conv.weight"]
    assert gradient is not None
    first, total = (task for task in graph.tasks if gradient.block in task.writes)
    assert [graph.layers[task.layer] for task in (first, total)] == ["conv#2", "conv"]
    [partial] = set(total.reads) - {gradient.block}
    assert graph.blocks[partial].role is Role.PARTIAL_GRADIENT
    assert graph.last_use[partial] == total.index
    [maker] = [task for task in graph.tasks if partial in task.creates]
    assert maker.gradient_of is GradientOf.WEIGHT


@pytest.mark.parametrize(("is_frozen", "product"), [(False, "mm"), (True, "bmm")])
def test_inference_has_the_products_of_plain_pytorch(is_frozen: bool, product: str) -> None:
    """PyTorch chooses by `requires_grad` without gradients, too: a transposed input slows `bmm` up to ten times."""
    module, transposed = nn.Linear(3, 4).requires_grad_(not is_frozen), torch.randn(2, 5, 3).transpose(0, 1)
    with torch.no_grad(), Seen() as seen:
        module(transposed)
    graph = capture(Workload("linear", module, None, (transposed,), ())).graph
    assert [name for name in seen.names if name.endswith("mm")] == [product]
    assert [name for name in operators(graph) if name.endswith("mm")] == [product]


def test_operations_are_counted(captured: CapturedStep) -> None:
    convolution = next(task for task in captured.graph.tasks if task.name == "conv:convolution")
    assert convolution.operations == 2 * (2 * 4 * 6 * 6) * (4 * 3 * 3)


def test_external_bytes_and_the_lower_bound(captured: CapturedStep) -> None:
    graph = captured.graph
    held = sum(b.size_bytes for b in graph.blocks if b.role in {Role.WEIGHT, Role.BUFFER, Role.INPUT, Role.LABEL})
    assert graph.external_bytes == held
    assert graph.lower_bound_bytes > held


def test_capture_leaves_a_module_as_it_was_that_stands_in_two_places() -> None:
    norm, tied = nn.BatchNorm1d(3), nn.Linear(3, 3)
    module = nn.Sequential(nn.Linear(3, 3), norm, tied, norm)
    module[0].weight = tied.weight
    before = list(module.named_parameters()) + list(module.named_buffers())
    work = Workload("shared", module, nn.functional.cross_entropy, (torch.randn(4, 3),), (torch.arange(4) % 3,))
    captured = capture(work)
    after = list(module.named_parameters()) + list(module.named_buffers())
    assert all(first is second for (_, first), (_, second) in zip(before, after, strict=True))
    assert module[0].weight is tied.weight
    assert not captured.constants


class Keeps(nn.Module):
    """Keeps a tensor, as recurrent networks keep a state and others an activation for inspection."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.state: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs if self.state is None else inputs + self.state)
        self.state = outputs.detach()
        return outputs


class Trains(nn.Module):
    """A loss with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs * self.temperature, targets)


class Computes(nn.Module):
    """A linear layer with a function behind it."""

    def __init__(self, function: Callable[["Computes", Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.function = function
        self.total = torch.zeros(3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(self, self.inner(inputs))


def _resized(_: Computes, maps: Tensor) -> Tensor:
    return maps + torch.empty(2).resize_(3).copy_(maps.detach()[0])


def _drawn_apart(_: Computes, maps: Tensor) -> Tensor:
    return maps + torch.randn(3, generator=torch.Generator())


@pytest.mark.parametrize(
    ("module", "loss", "message"),
    [
        (Computes(_resized), nn.functional.cross_entropy, "'the model' .* replaces a tensor's memory"),
        (Computes(_drawn_apart), nn.functional.cross_entropy, "draws from its own random generator"),
        (
            Computes(lambda m, maps: maps + m.total.add_(maps.detach()[0])),
            nn.functional.cross_entropy,
            "'the model' is not supported: aten.add_.Tensor writes to a tensor that is not a buffer",
        ),
        (
            Computes(lambda _, maps: maps + torch.from_numpy(maps.detach().numpy())),
            nn.functional.cross_entropy,
            "'the model' is not supported: it does not run on 4 samples without data: .*numpy",
        ),
        (nn.Linear(2, 3), nn.functional.cross_entropy, "without data: a and b must have same reduction dim"),
        (Keeps(), nn.functional.cross_entropy, "'state' is not supported: it is a tensor that the module keeps"),
        (nn.Linear(3, 3), Trains(), "'loss' is not supported: it trains a tensor that is not a parameter"),
    ],
)
def test_what_a_trace_would_take_for_constant_or_do_for_real_is_refused(
    module: nn.Module, loss: nn.Module, message: str
) -> None:
    work = Workload("net", module, loss, (torch.randn(4, 3),), (torch.arange(4) % 3,))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(UnsupportedModel, match=message):
        capture(work)
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())
    assert getattr(module, "state", None) is None


def test_a_sparse_gradient_is_refused() -> None:
    module = nn.Embedding(5, 3, sparse=True)
    work = Workload("net", module, nn.functional.cross_entropy, (torch.arange(4),), (torch.arange(4) % 3,))
    with pytest.raises(UnsupportedModel, match="makes a sparse tensor; make a dense one"):
        capture(work)


def test_blocks_that_die_together_are_released_in_the_order_of_their_indices(captured: CapturedStep) -> None:
    plain = captured.graph.plain
    assert plain is not None
    together = [task.releases for task in plain.tasks if len(task.releases) > 1]
    assert together
    assert all(releases == tuple(sorted(releases)) for releases in together)
