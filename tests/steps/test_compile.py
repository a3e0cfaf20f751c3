"""The library entry as its users meet it."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

import membench
from membench.core.configuration import load
from membench.core.errors import (
    InfeasibleSchedule,
    MembenchError,
    OutOfMemory,
    ShapeMismatch,
    UnsupportedModel,
    UnsupportedStrategy,
)
from membench.core.graph.task_graph import TaskGraph
from membench.core.units import MIB
from membench.models.digits import digits_cnn
from membench.models.resnet import imagenet_resnet
from membench.steps.plan import StepPlanner
from membench.strategies.base import strategies
from membench.strategies.eager import Eager
from membench.strategies.layrub.strategy import LayrubHybrid
from tests.helpers.planning.chains import chain_of_batch
from tests.helpers.planning.costs import UnitCost

CRITERION = nn.functional.cross_entropy


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 1, 8, 8), torch.randint(10, (8,))


def digits_losses(module: nn.Module, strategy: str | None) -> tuple[list[float], float]:
    """Train on real digits for twelve steps; return the loss of each and the rounding of the schedule."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    targets = torch.tensor(labels)
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    first = (inputs[:64], targets[:64])
    step = membench.compile(module, CRITERION, first, strategy=strategy) if strategy else None
    losses = []
    for start in range(0, 12 * 64, 64):
        images, labels = inputs[start : start + 64], targets[start : start + 64]
        optimizer.zero_grad()
        if step is not None:
            loss = step(images, labels)
        else:
            loss = CRITERION(module(images), labels)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, step.schedule.rounding if step else 0.0


@pytest.mark.exhaustive
def test_every_strategy_trains_on_digits_with_the_same_losses() -> None:
    torch.manual_seed(0)
    module = digits_cnn()
    expected, _ = digits_losses(copy.deepcopy(module), None)
    assert expected[-1] < 0.5 * expected[0]
    for strategy in strategies():
        losses, rounding = digits_losses(copy.deepcopy(module), strategy)
        assert losses == (pytest.approx(expected, rel=0.01) if rounding else expected), strategy


def test_gradients_accumulate_as_backward_does(batch: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    module = digits_cnn().eval()
    for _ in range(2):
        CRITERION(module(batch[0]), batch[1]).backward()
    expected = [weight.grad for weight in module.parameters()]
    module.zero_grad()
    step = membench.compile(module, CRITERION, batch, strategy="layrub_hybrid")
    for _ in range(2):
        step(*batch)
    for weight, gradient in zip(module.parameters(), expected, strict=True):
        assert gradient is not None and weight.grad is not None
        assert torch.equal(weight.grad, gradient)


def test_measure_agrees_with_the_prediction_and_leaves_no_trace(batch: tuple[Tensor, Tensor]) -> None:
    module = digits_cnn()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    step = membench.compile(module, CRITERION, batch, strategy="layrub_hybrid")
    generator_state = torch.get_rng_state()
    measured = step.measure()
    assert measured.source == "measured"
    assert measured.peak_bytes == step.predicted_peak_bytes
    assert measured.offloaded_bytes == measured.unique_saved_bytes == measured.prefetched_bytes > 0
    assert all(weight.grad is None for weight in module.parameters())
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator_state)


def test_the_schedule_prints(batch: tuple[Tensor, Tensor]) -> None:
    step = membench.compile(digits_cnn(), CRITERION, batch, strategy=LayrubHybrid(fixed_region=True))
    text = str(step.schedule)
    assert "by layrub_hybrid" in text and "offload" in text and "reuse" in text


def test_the_plan_of_every_step_prints(batch: tuple[Tensor, Tensor]) -> None:
    whole = membench.compile(digits_cnn(), CRITERION, batch)
    assert [str(part) for part in whole.plan] == [str(whole.schedule)]
    parts = membench.compile(digits_cnn(), CRITERION, batch, micro_batch=3, backend="simulated", device="k40m")
    first, last = map(str, parts.plan)
    assert first.startswith("2 times the schedule of Sequential (batch 3) by eager")
    assert last.startswith("schedule of Sequential (batch 2) by eager")


@pytest.mark.slow
def test_a_large_step_is_simulated_without_being_allocated() -> None:
    with torch.device("meta"):
        module = imagenet_resnet(50)
        large = torch.empty(64, 3, 224, 224), torch.empty(64, dtype=torch.int64)
    step = membench.compile(module, CRITERION, large, strategy="layrub_hybrid", backend="simulated", device="k40m")
    measured = step.measure()
    assert measured.source == "simulated"
    assert measured.peak_bytes == step.predicted_peak_bytes > 900 * MIB
    assert 0 < measured.compute_time_s <= measured.step_time_s
    with pytest.raises(MembenchError, match="a simulated step computes nothing"):
        step(*large)
    with pytest.raises(OutOfMemory, match=r"needs .* GB and the device has"):
        membench.compile(module, CRITERION, large, strategy="network_wide", backend="simulated", device="titan_z")


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=4, max_size=4, unique=True))
def test_a_refusal_of_all_micro_batches_names_the_one_with_the_least_bound(factors: list[int]) -> None:
    # a graph's memory need not grow with its batch: another algorithm may take more workspace
    images_by_size = dict(zip((8, 4, 2, 1), factors, strict=True))

    def graph_at(size: int) -> TaskGraph:
        return chain_of_batch(images_by_size[size])

    bounds = {size: graph_at(size).lower_bound_bytes for size in images_by_size}
    with pytest.raises(InfeasibleSchedule) as refusal:
        StepPlanner(graph_at, 8, Eager(), UnitCost(), micro_batch="fastest").within(1)
    least = min(bounds, key=lambda size: bounds[size])
    assert (refusal.value.micro_batch, refusal.value.lower_bound_bytes) == (least, bounds[least])
    assert f"in micro-batches of {least}, the least demanding of those tried" in str(refusal.value)
    with pytest.raises(InfeasibleSchedule, match="in micro-batches of 4,"):
        StepPlanner(graph_at, 8, Eager(), UnitCost(), micro_batch=4).within(1)
    with pytest.raises(InfeasibleSchedule, match="or lower the batch size") as refusal:
        StepPlanner(graph_at, 8, Eager(), UnitCost()).within(1)
    assert (refusal.value.micro_batch, refusal.value.lower_bound_bytes) == (None, bounds[8])


def test_bad_input_is_refused_with_what_to_do(batch: tuple[Tensor, Tensor]) -> None:
    module = digits_cnn()
    with pytest.raises(UnsupportedStrategy, match="strategy 'layrup' is not known.* are: .*layrub_hybrid"):
        membench.compile(module, CRITERION, batch, strategy="layrup")
    with pytest.raises(InfeasibleSchedule, match=r"no schedule of this graph can do with less than .* KB"):
        membench.compile(module, CRITERION, batch, budget="10 KB")
    with pytest.raises(MembenchError, match="budget: 'plenty' is not a size"):
        membench.compile(module, CRITERION, batch, budget="plenty")
    with pytest.raises(MembenchError, match="backend 'tpu' is not known.* are: cpu, cuda, simulated"):
        membench.compile(module, CRITERION, batch, backend="tpu")
    with pytest.raises(MembenchError, match="device 'k9000' is not known.* are: .*k40m"):
        membench.compile(module, CRITERION, batch, backend="simulated", device="k9000")
    with pytest.raises(MembenchError, match="needs a device; choose one of .*k40m"):
        membench.compile(module, CRITERION, batch, backend="simulated")
    with torch.device("meta"):
        unallocated = digits_cnn()
    with pytest.raises(UnsupportedModel, match="it is on .*, not on cpu"):
        membench.compile(unallocated, CRITERION, batch)


def test_out_of_memory_names_segments_where_they_alone_do_not_fit() -> None:
    assert "segments" in str(OutOfMemory(needed_bytes=50 * MIB, capacity_bytes=60 * MIB))
    assert "segments" not in str(OutOfMemory(needed_bytes=70 * MIB, capacity_bytes=60 * MIB))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"strategy": LayrubHybrid}, "the strategy is a name or an instance of a Strategy, not <class"),
        ({"device": "k40m"}, "device, cluster and machine are for backend='simulated', but the backend is 'cpu'"),
        (
            {"cluster": "modnn_k40x4"},
            "device, cluster and machine are for backend='simulated', but the backend is 'cpu'",
        ),
        ({"cuda_graph": True}, "cuda_graph=True needs backend='cuda'"),
        ({"cuda_graph": True, "backend": "simulated", "device": "k40m"}, "needs backend='cuda'"),
        ({"exchange": "never", "backend": "simulated", "device": "k40m"}, "'never' is not known; there are: as_made"),
    ],
)
def test_arguments_that_would_have_no_effect_are_refused(
    arguments: dict[str, Any], message: str, batch: tuple[Tensor, Tensor]
) -> None:
    with pytest.raises(MembenchError, match=message):
        membench.compile(digits_cnn(), CRITERION, batch, **arguments)


def test_a_batch_that_is_not_a_pair_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    images, labels = batch
    for pair in (images, (images,), (images, labels, labels)):
        with pytest.raises(MembenchError, match=r"the batch is a pair \(inputs, targets\)"):
            membench.compile(digits_cnn(), CRITERION, pair)  # type: ignore[arg-type]


def test_data_that_requires_a_gradient_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    step = membench.compile(digits_cnn(), CRITERION, batch)
    images = batch[0].clone().requires_grad_()
    with pytest.raises(MembenchError, match=r"inputs\[0\] requires a gradient, .* detach it"):
        step(images * 2, batch[1])
    with torch.no_grad():
        step(images * 2, batch[1])


def test_a_call_within_autocast_is_refused_unless_it_was_captured_so(batch: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    module = digits_cnn().eval()
    step, casting = (
        membench.compile(module, CRITERION, batch, precision=precision) for precision in (None, "amp_bf16")
    )
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(MembenchError, match="called with autocast to torch.bfloat16 and was captured with"):
            step(*batch)
        within, captured_within = casting(*batch), membench.compile(module, CRITERION, batch)
        assert captured_within(*batch).equal(within)
    assert within.equal(casting(*batch)) and not within.equal(step(*batch))
    with pytest.raises(MembenchError, match="called with autocast to None"):
        captured_within(*batch)


def test_other_data_than_captured_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    step = membench.compile(digits_cnn(), CRITERION, batch)
    with pytest.raises(ShapeMismatch, match=r"shape \(4, 1, 8, 8\).*the step takes .*\(8, 1, 8, 8\)"):
        step(batch[0][:4], batch[1][:4])
    with pytest.raises(ShapeMismatch, match=r"float64; .* convert it with .to\(torch.float32\)"):
        step(batch[0].double(), batch[1])
    with pytest.raises(ShapeMismatch, match=r"inputs\[0\] is a ndarray; the step takes"):
        step(batch[0].numpy(), batch[1])
    with pytest.raises(ShapeMismatch, match=r"inputs\[0\] is a sparse or nested tensor; the step takes"):
        step(batch[0].to_sparse(), batch[1])
    with pytest.raises(ShapeMismatch, match="captured with 1 inputs and got 2"):
        step((batch[0], batch[0]), batch[1])


def test_inputs_in_another_layout_give_the_same_loss(batch: tuple[Tensor, Tensor]) -> None:
    module = digits_cnn().eval()
    step = membench.compile(module, CRITERION, batch)
    transposed = batch[0].transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(step(transposed, batch[1]), step(*batch))


class ReadsValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.inner(inputs)
        return outputs * 2 if outputs.sum().item() > 0 else outputs


class ReplacesBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = self.seen + 1
        return self.inner(inputs)


def test_models_that_a_graph_cannot_express_are_refused_by_layer() -> None:
    data = torch.randn(2, 4), torch.randint(4, (2,))
    with pytest.raises(UnsupportedModel, match="layer '0' is not supported: Python reads the value of a tensor"):
        membench.compile(nn.Sequential(ReadsValues()), CRITERION, data)
    with pytest.raises(UnsupportedModel, match="layer 'seen' is not supported: it replaces a buffer"):
        membench.compile(ReplacesBuffer(), CRITERION, data)
    with pytest.raises(UnsupportedModel, match="layer 'loss' is not supported: it returns"):
        membench.compile(nn.Linear(4, 4), nn.CrossEntropyLoss(reduction="none"), data)


class Sharing(nn.Module):
    """One weight used twice, one unused, one frozen, and a constant that is not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.inner.weight
        self.unused = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.constant = torch.arange(4.0)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.frozen(self.tied(self.inner(inputs) + self.constant).relu()) + torch.tensor(0.5)


@pytest.mark.slow
def test_shared_unused_and_frozen_weights_and_constants() -> None:
    torch.manual_seed(0)
    module, data = Sharing(), (torch.randn(2, 4), torch.randint(4, (2,)))
    loss = CRITERION(module(data[0]), data[1])
    loss.backward()
    expected = {name: weight.grad for name, weight in module.named_parameters()}
    module.zero_grad()
    for strategy in strategies():
        assert torch.equal(membench.compile(module, CRITERION, data, strategy=strategy)(*data), loss)
        for name, weight in module.named_parameters():
            gradient = expected[name]
            assert (weight.grad is None) == (gradient is None), name
            assert gradient is None or torch.equal(weight.grad, gradient), name
        module.zero_grad()


@pytest.mark.parametrize("strategy", ["joint", "modnn", "vdnn_dyn", "dtr", "eager"])
def test_without_a_budget_a_step_takes_what_the_simulated_device_has(strategy: str) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    step = (module, CRITERION, (torch.randn(16, 16, 32, 32), torch.randint(10, (16,))))
    large = load("device", "k40m")
    free = membench.compile(*step, strategy=strategy, backend="simulated", device=large)
    small = replace(large, memory_bytes=int(0.95 * free.predicted_peak_bytes))
    assert free.predicted_peak_bytes > small.memory_bytes
    if strategy == "eager":
        with pytest.raises(OutOfMemory):
            membench.compile(*step, strategy=strategy, backend="simulated", device=small)
    else:
        found = membench.compile(*step, strategy=strategy, backend="simulated", device=small)
        assert found.predicted_peak_bytes <= small.memory_bytes
