"""Weights on the host while the step runs on a GPU, on a stand-in whose copies are as late as the waits allow."""

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from membench.backends.accelerator import AcceleratorBackend
from membench.capture.capture import Captures
from membench.core.step.workload import Workload
from membench.models.digits import digits_cnn
from membench.steps import compile as library
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import find_strategy
from membench.strategies.modnn.strategy import Modnn
from tests.helpers.emulator.fake_accelerator import FakeAccelerator, fake_accelerator
from tests.helpers.networks.contract import COST

BATCH_SIZE = 4


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAccelerator]:
    monkeypatch.setattr(library, "real_backend", AcceleratorBackend)
    with fake_accelerator(monkeypatch) as fake:
        yield fake


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(BATCH_SIZE, 1, 8, 8), torch.randint(10, (BATCH_SIZE,))


def trained(module: nn.Module, strategy: Modnn, micro_batch: int) -> list[Tensor]:
    """Take three steps of descent, and return each loss and the last weights."""
    images, labels = batch()
    work = Workload("digits", module, nn.functional.cross_entropy, (images,), (labels,))
    step = build_step(Captures(work), COST, StepRequest(strategy, micro_batch=micro_batch))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(step(images, labels))
        optimizer.step()
    step.close()
    return [*losses, *(weight.detach() for weight in module.parameters())]


@pytest.mark.parametrize("micro_batch", [2, 3, BATCH_SIZE])
def test_weights_that_live_on_the_host_are_trained_there(cuda: FakeAccelerator, micro_batch: int) -> None:
    resident = digits_cnn().eval()
    visiting = copy.deepcopy(resident)
    expected = trained(resident, Modnn(), micro_batch)
    found = trained(visiting, Modnn(offload_weights=True), micro_batch)
    assert len(expected) == len(found)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("strategy", ["mmcnn", "vdnn_inference"])
def test_weights_that_change_between_two_calls_are_the_changed_ones(cuda: FakeAccelerator, strategy: str) -> None:
    module, other = digits_cnn().eval(), digits_cnn().eval()
    images, _ = batch()
    work = Workload("digits", module, None, (images,))
    step = build_step(Captures(work), COST, StepRequest(find_strategy(strategy)()))
    for _ in range(2):
        torch.testing.assert_close(step(images), module(images))
        module.load_state_dict(other.state_dict())
    step.close()


def test_they_lie_in_page_locked_memory_until_the_step_is_closed(cuda: FakeAccelerator) -> None:
    module = digits_cnn()
    state = copy.deepcopy(module.state_dict())
    images, labels = batch()
    for weight in module.parameters():
        weight.grad = torch.ones_like(weight)
    work = Workload("digits", module, nn.functional.cross_entropy, (images,), (labels,))
    step = build_step(Captures(work), COST, StepRequest(Modnn(offload_weights=True), micro_batch=2))
    assert {weight.data_ptr() for weight in module.parameters()} <= set(cuda.locked_bytes)
    assert all(weight.grad is not None and weight.grad.eq(1).all() for weight in module.parameters())
    step.close()
    assert not cuda.locked_bytes
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())


def test_the_steady_state_locks_nothing(cuda: FakeAccelerator) -> None:
    module = digits_cnn()
    images, labels = batch()
    work = Workload("digits", module, nn.functional.cross_entropy, (images,), (labels,))
    step = build_step(Captures(work), COST, StepRequest(Modnn(offload_weights=True), micro_batch=2))
    locked = []
    for _ in range(3):
        module.zero_grad(set_to_none=True)
        step(images, labels)
        locked.append(dict(cuda.locked_bytes))
    assert locked[0] == locked[1] == locked[2]
    step.close()


@pytest.mark.parametrize("offload_weights", [False, True])
def test_a_step_returns_after_its_last_copy_to_or_from_memory_of_the_caller(
    cuda: FakeAccelerator, offload_weights: bool
) -> None:
    """The compute stream of the stand-in is the host itself, so only the call is visible."""
    images, labels = batch()
    work = Workload("digits", digits_cnn(), nn.functional.cross_entropy, (images,), (labels,))
    step = build_step(Captures(work), COST, StepRequest(Modnn(offload_weights), micro_batch=2))
    step(images, labels)
    synchronized = {stream for stream, call, _ in cuda.calls if call == "synchronize"}
    assert synchronized == ({stream.name for stream in cuda.streams} if offload_weights else set())
    step.close()
