"""A step in a program of its user's: broken off, called from threads, copied, called where no gradients may be made."""

import copy
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.backends.calls import calls
from membench.backends.calls.kernels import find_kernel
from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.graph.call import Call
from membench.steps.real.compiled_step import CompiledStep

CRITERION = nn.functional.cross_entropy
DATA = torch.randn(4, 3, 6, 6), torch.randint(5, (4,))


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5)
    return nn.Sequential(*layers)


def step_of(module: nn.Module, **options: Any) -> CompiledStep:
    step = membench.compile(module, CRITERION, DATA, **options)
    assert isinstance(step, CompiledStep)
    return step


def expected_loss(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the loss, and leave its gradients behind, as plain PyTorch does."""
    module.zero_grad()
    loss: Tensor = CRITERION(module(inputs), DATA[1])
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("strategy", ["eager", "layrub_hybrid", "memonger", "superneurons", "vdnn_all"])
def test_a_step_that_was_broken_off_leaves_nothing_to_the_next(
    strategy: str, module: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = copy.deepcopy(module)
    expected = expected_loss(plain, DATA[0])
    left = 0

    def broken_off(call: Call, device: torch.device) -> Callable[..., Any]:
        kernel = find_kernel(call, device)

        def run_some(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return kernel(*args, **kwargs)

        return run_some

    monkeypatch.setattr(calls, "find_kernel", broken_off)
    step = step_of(module, strategy=strategy)
    for tasks in range(len(step.schedule.graph.tasks)):
        left = tasks
        with pytest.raises(KeyboardInterrupt):
            step(2 * DATA[0], DATA[1])
        left = 10**6
        module.zero_grad()
        assert torch.equal(step(*DATA), expected)
        assert all(
            weight.grad is not None and other.grad is not None and torch.equal(weight.grad, other.grad)
            for weight, other in zip(module.parameters(), plain.parameters(), strict=True)
        )


def test_a_step_that_was_broken_off_holds_no_memory(module: nn.Module) -> None:
    step = step_of(module, strategy="layrub_hybrid")
    with pytest.raises(IndexError):
        step(DATA[0], torch.full((4,), 99))
    for block in step.schedule.graph.blocks:
        with pytest.raises(AssertionError, match="not resident"):
            step.backend.tensors.as_bytes(block.index)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_threads_take_turns(micro_batch: int | None, module: nn.Module) -> None:
    step = membench.compile(module, CRITERION, DATA, strategy="vdnn_all", micro_batch=micro_batch)
    factors = torch.arange(24)
    expected = [step(factor * DATA[0], DATA[1]) for factor in factors]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda factor: step(factor * DATA[0], DATA[1]), factors))
    assert found == expected


def test_a_forked_process_has_copy_threads_of_its_own(module: nn.Module) -> None:
    step = step_of(module, strategy="vdnn_all")
    expected = step(*DATA)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(step(*DATA), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_a_step_is_not_copied_and_its_plan_is(micro_batch: int | None, module: nn.Module) -> None:
    step = membench.compile(module, CRITERION, DATA, micro_batch=micro_batch)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(MembenchError, match="copy the module and compile the copy"):
            duplicate(step)  # type: ignore[operator]
    assert pickle.loads(pickle.dumps(step.plan)) == step.plan


def test_training_is_refused_where_no_gradients_may_be_made(module: nn.Module) -> None:
    step = step_of(module)
    with torch.inference_mode():
        for train in (lambda: step(*DATA), lambda: step_of(module)):
            with pytest.raises(MembenchError, match=r"outside torch.inference_mode\(\)"):
                train()
        infer = membench.compile(module, None, (DATA[0], ()))
        assert torch.equal(infer(DATA[0]), module(DATA[0]))
    with torch.no_grad():
        assert torch.equal(step_of(module)(*DATA), step(*DATA))


def test_a_loss_without_trained_weights_is_refused(module: nn.Module) -> None:
    with pytest.raises(UnsupportedModel, match="it does not depend on any trainable weight; unfreeze a weight"):
        step_of(module.requires_grad_(False))


def test_anomaly_detection_does_not_read_what_a_trace_has_not(module: nn.Module) -> None:
    with torch.autograd.set_detect_anomaly(True):
        assert torch.equal(step_of(module)(*DATA), expected_loss(module, DATA[0]))


class Held:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class OutOfSight:
    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class ReturnsObject(nn.Module):
    def __init__(self, inner: nn.Module, kind: type) -> None:
        super().__init__()
        self.inner = inner
        self.kind = kind

    def forward(self, inputs: Tensor) -> Any:
        return self.kind(self.inner(inputs))


def test_an_output_whose_tensors_are_out_of_sight_is_refused(module: nn.Module) -> None:
    with pytest.raises(UnsupportedModel, match="cannot open a OutOfSight; return tensors"):
        membench.compile(ReturnsObject(module, OutOfSight), None, (DATA[0], ()))


def test_an_object_with_tensors_is_returned(module: nn.Module) -> None:
    made = membench.compile(ReturnsObject(module, Held), None, (DATA[0], ()))(DATA[0])
    assert type(made) is Held and made.tensor.equal(module(DATA[0]))
