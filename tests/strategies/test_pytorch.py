"""Plain PyTorch as a strategy: on the CPU its predicted peak is the allocator's, to the byte."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.capture.trace import ANY_GPU
from membench.conformance.networks import workload_of
from membench.core import configuration
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Phase, Role, TaskGraph
from membench.core.step.workload import Workload
from membench.execution.measurement import peaks_bytes
from membench.steps.plan import plan
from membench.strategies.eager import Eager
from membench.strategies.pytorch import PyTorch
from tests.helpers.devices import DEVICE
from tests.helpers.networks.contract import COST, EACH_NETWORK, reference
from tests.helpers.networks.random_networks import ALL_PLANS, LOSSES, Layers, random_workload, runs_in_plain_pytorch

CPU = torch.device("cpu")


def predicted_bytes(graph: TaskGraph) -> int:
    schedule = plan(graph, PyTorch(), COST, None)
    given = [block for block in schedule.graph.blocks if block.is_external and block.role is not Role.ACCUMULATED]
    return schedule.peak_bytes - sum(block.size_bytes for block in given)


def measured_bytes(work: Workload) -> list[int]:
    """Return the peaks of the second and the third step of a loop, which has the variables that the workload states."""
    held: list[object] = [None]

    def loss() -> Tensor:
        assert work.loss is not None
        if work.holds_output:
            held[0] = work.module(*work.inputs)
            return work.loss(held[0], *work.targets)
        return work.loss(work.module(*work.inputs), *work.targets)

    def step() -> None:
        if work.holds_gradients:
            of_step = loss()
            work.module.zero_grad()
        else:
            work.module.zero_grad(set_to_none=not work.accumulates)
            of_step = loss()
        of_step.backward()

    peaks = peaks_bytes([work.module.zero_grad, step, step, step], CPU)[1:]
    work.module.zero_grad(set_to_none=True)
    return peaks[1:]


@pytest.mark.parametrize("network", EACH_NETWORK)
def test_the_predicted_peak_of_a_network_is_the_allocators(network: str) -> None:
    work = workload_of(network, DEVICE)
    assert measured_bytes(work) == 2 * [predicted_bytes(reference(network).captured.graph)]


@pytest.mark.parametrize("network", EACH_NETWORK)
def test_the_predicted_peak_with_gradients_zeroed_in_place_is_the_allocators(network: str) -> None:
    work = replace(workload_of(network, DEVICE), accumulates=True)
    assert measured_bytes(work) == 2 * [predicted_bytes(capture(work).graph)]


@pytest.mark.parametrize("network", EACH_NETWORK)
def test_the_predicted_peak_with_gradients_freed_behind_the_loss_is_the_allocators(network: str) -> None:
    work = replace(workload_of(network, DEVICE), holds_gradients=True)
    assert measured_bytes(work) == 2 * [predicted_bytes(capture(work).graph)]


class ManyClasses(nn.Sequential):
    """Logits that are larger than all else, and a loss in the module if it gets labels."""

    def __init__(self, wide: int) -> None:
        super().__init__(nn.Linear(16, wide), nn.ReLU(), nn.Linear(wide, 3000))

    def forward(self, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = super().forward(features)
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {"logits": logits, "shape": logits.mean(1), **loss}


@pytest.mark.parametrize("wide", [64, 4096], ids=["peak behind the loss", "peak before the last layer"])
@pytest.mark.parametrize("accumulates", [False, True])
@pytest.mark.parametrize("loss_in_module", [False, True])
def test_an_output_is_held_until_the_next_one_is_there(wide: int, accumulates: bool, loss_in_module: bool) -> None:
    features, labels = torch.randn(32, 16), torch.randint(3000, (32,))

    def loss(output: dict[str, Tensor], *labels: Tensor) -> Tensor:
        return output["loss"] if loss_in_module else nn.functional.cross_entropy(output["logits"], *labels)

    arguments = ((features, labels), ()) if loss_in_module else ((features,), (labels,))
    free = Workload("logits", ManyClasses(wide), loss, *arguments, accumulates=accumulates)
    held = replace(free, holds_output=True)
    of_free, of_held = (predicted_bytes(capture(work).graph) for work in (free, held))
    assert (measured_bytes(free), measured_bytes(held)) == (2 * [of_free], 2 * [of_held])
    assert of_held - of_free >= 32 * 3000 * 4


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    layers=ALL_PLANS,
    seed=st.integers(0, 1000),
    loss=st.sampled_from(sorted(LOSSES)),
    holds_output=st.booleans(),
    accumulates=st.booleans(),
)
@example(
    layers=[("dropout in place", 0, 0), ("convolution", 0, 1)],
    seed=0,
    loss="masked",
    holds_output=False,
    accumulates=False,
)  # keeps numbers
def test_the_predicted_peak_of_random_networks_is_the_allocators(
    layers: Layers, seed: int, loss: str, holds_output: bool, accumulates: bool
) -> None:
    assume(runs_in_plain_pytorch(layers, seed))
    work = replace(random_workload(layers, seed, loss), holds_output=holds_output, accumulates=accumulates)
    of_loss = 4 if accumulates else 0  # where the loss is added up, as over micro-batches
    assert all(0 <= predicted_bytes(capture(work).graph) - peak <= of_loss for peak in measured_bytes(work))


@pytest.mark.parametrize("network", EACH_NETWORK)
def test_the_predicted_peak_of_inference_is_the_allocators(network: str) -> None:
    work = workload_of(network, DEVICE)
    work = Workload(work.name, work.module.eval(), None, work.inputs)
    with torch.no_grad():
        peaks = peaks_bytes([lambda: work.module(*work.inputs)], CPU)
    assert peaks == [predicted_bytes(capture(work).graph)]


class SelfAttention(nn.MultiheadAttention):
    """Attention of a batch of sequences to itself."""

    def forward(self, sequences: Tensor) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        return super().forward(sequences, sequences, sequences)


@pytest.mark.parametrize(
    "layer",
    [
        SelfAttention(64, 4, batch_first=True),
        nn.TransformerEncoderLayer(64, 4, 64, batch_first=True),
        nn.TransformerEncoderLayer(64, 4, 512, activation="gelu", batch_first=True, norm_first=True),
    ],
    ids=["attention", "relu", "gelu, norm first"],
)
def test_the_predicted_peak_of_fused_layers_is_the_allocators(layer: nn.Module) -> None:
    work = Workload("fused", layer.eval(), None, (torch.randn(3, 50, 64),))
    with torch.no_grad():
        peaks = peaks_bytes([lambda: work.module(*work.inputs)], CPU)
    assert peaks == [predicted_bytes(capture(work).graph)]


class KeepingAll(nn.Module):
    """Holds each of its activations in a variable until it returns, and computes one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(4))

    def forward(self, images: Tensor) -> Tensor:
        kept = [images]
        for layer in self.layers:
            kept.append(layer(kept[-1]).relu())
        kept[1].exp()
        return kept[-1][:, :4].clone()


def test_local_variables_hold_what_eager_frees() -> None:
    work = Workload("keeping", KeepingAll().eval(), None, (torch.randn(64, 256),))
    graph = capture(work).graph
    eager = plan(graph, Eager(), COST, None)
    plain = plan(graph, PyTorch(), COST, None)
    map_bytes = 64 * 256 * 4
    assert plain.peak_bytes - eager.peak_bytes == 3 * map_bytes
    assert len(plain.graph.tasks) == len(eager.graph.tasks) + 1


class Gathering(nn.Module):
    """A function of a weight and of numbers of its rows."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(500, 64))
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        return self.function(self.weight, rows).square().sum()


@pytest.mark.parametrize(
    "function",
    [
        lambda weight, rows: weight[rows],
        lambda weight, rows: weight.index_select(0, rows),
        lambda weight, rows: weight.gather(0, rows[:, None]),
        lambda weight, rows: (2 * weight).take(rows),
        lambda weight, rows: weight.max(0).values,
        lambda weight, rows: torch.index_put(2 * weight, (rows,), weight[:16]),
        lambda weight, rows: torch.put(2 * weight, rows, weight[0, :16]),
    ],
    ids=["index", "index_select", "gather", "take", "max", "index_put", "put"],
)
def test_the_predicted_peak_of_a_gathers_gradient_is_the_allocators(
    function: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Autograd adds to zeros in place, and copies the gradient of a table that was written to."""
    work = Workload("gathering", Gathering(function), Tensor.clone, (torch.arange(16),))
    assert measured_bytes(work) == 2 * [predicted_bytes(capture(work).graph)]


def test_another_frameworks_graph_is_refused() -> None:
    lowered = configuration.load("framework", "caffe").lower(reference("alexnet").captured.graph)
    with pytest.raises(UnsupportedStrategy, match="framework=pytorch"):
        PyTorch().schedule(lowered, COST, None)


def test_cast_weights_live_until_the_forward_pass_ends() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    arguments = (torch.randn(4, 64),), (torch.randint(64, (4,)),)
    work = Workload("cast", module, nn.functional.cross_entropy, *arguments, precision=Precision.AMP_BF16)
    plain = capture(work, ANY_GPU).graph.plain
    assert plain is not None
    casts = {block.index for block in plain.blocks if block.size_bytes == 2 * 64 * 64 and block.role is Role.ACTIVATION}
    released = {task.phase for task in plain.tasks if casts.intersection(task.releases)}
    assert len(casts) == 2 and Phase.FORWARD not in released
