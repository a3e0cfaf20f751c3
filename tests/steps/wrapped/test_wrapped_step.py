"""The two halves of a wrapped module's step: waiting calls, outputs, gradients, and what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from membench.core.errors import MembenchError
from tests.helpers.steps.wrapping import batch, check_loop, loss_of, pair


def test_several_calls_may_wait_for_their_backward_pass() -> None:
    def loop(module: nn.Module) -> Any:
        losses = [loss_of(module, seed=seed) for seed in range(3)]
        if hasattr(module, "wrapped_calls"):
            [step] = module.wrapped_calls.steps
            assert step.waiting == 3
            assert module.wrapped_calls.waiting_bytes == 3 * step.held_bytes > 0
        (losses[0] + losses[2]).backward()
        losses[1].backward()
        return [loss.detach() for loss in losses]

    check_loop(loop)


def test_a_call_whose_history_is_dropped_gives_its_memory_back() -> None:
    _, wrapped = pair()
    loss = loss_of(wrapped)
    [step] = wrapped.wrapped_calls.steps
    assert step.waiting == 1
    del loss
    assert step.waiting == 0
    loss_of(wrapped).backward()
    assert step.waiting == 0


def test_an_output_that_the_loss_does_not_use_leaves_its_weights_without_a_gradient() -> None:
    def loop(module: nn.Module) -> Any:
        images, targets = batch()
        functional.cross_entropy(module(images)["logits"], targets).backward()

    wrapped = check_loop(loop)
    assert wrapped.other.weight.grad is None


def test_inputs_get_gradients_through_the_wrapped_module() -> None:
    def loop(module: nn.Module) -> Any:
        images, _ = batch()
        images.requires_grad_()
        bias = torch.linspace(-1, 1, 4).requires_grad_()
        outputs = module(images * 2, bias=bias * 3)
        (outputs["logits"].square().sum() + outputs["other"].mean()).backward()
        return images.grad, bias.grad

    check_loop(loop)


def test_a_wrapped_module_may_lie_within_torchs_checkpoint() -> None:
    def loop(module: nn.Module) -> Any:
        inputs = torch.randn(6, 8, requires_grad=True)
        checkpoint(module, inputs, use_reentrant=False).square().sum().backward()
        return inputs.grad

    check_loop(loop, lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 2)))


def test_gradients_flow_from_call_to_call() -> None:
    def loop(module: nn.Module) -> Any:
        state, total = torch.zeros(2, 5), torch.zeros(())
        for _ in range(4):
            state = module(torch.randn(2, 3), state)
            total = total + state.square().mean()
        total.backward()
        return total.detach()

    check_loop(loop, lambda: nn.GRUCell(3, 5))


def test_a_second_backward_pass_of_a_call_is_refused() -> None:
    _, wrapped = pair()
    loss = loss_of(wrapped)
    loss.backward(retain_graph=True)
    with pytest.raises(MembenchError, match="has run already"):
        loss.backward()


@pytest.mark.parametrize("strategy", ["eager", "memonger"])
def test_what_the_backward_pass_reads_must_not_be_overwritten(strategy: str) -> None:
    _, wrapped = pair(strategy=strategy)
    loss = loss_of(wrapped)
    with torch.no_grad():
        wrapped.head.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    loss_of(wrapped).backward()


class Sigmoid(nn.Module):
    """Its backward pass reads its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> tuple[Tensor, ...]:
        made = torch.sigmoid(self.layer(inputs))
        return inputs, made, made, made[:, 0], self.layer.bias


def test_outputs_that_share_memory_have_the_right_gradients() -> None:
    def loop(module: nn.Module) -> Any:
        inputs = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
        given, one, other, part, bias = module(inputs)
        assert given is inputs and one is other and bias is module.layer.bias
        (given.sum() + one.square().sum() + 2 * other.sum() + part.prod() + bias.sum()).backward()
        return one.detach(), part.detach(), inputs.grad

    check_loop(loop, Sigmoid)


def test_an_output_that_is_read_again_must_not_be_overwritten() -> None:
    plain, wrapped = pair(Sigmoid)
    for module in (plain, wrapped):
        made = module(torch.ones(2, 3))[1]
        made.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            made.sum().backward()


def test_a_call_that_fails_does_not_affect_the_next() -> None:
    _, wrapped = pair(lambda: nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 2)))
    first = wrapped(torch.tensor([0, 1]))
    with pytest.raises(IndexError):
        wrapped(torch.tensor([0, 3]))
    again = wrapped(torch.tensor([0, 1]))
    assert again.equal(first)
    (first + again).sum().backward()
    assert wrapped.wrapped_calls.waiting_bytes == 0
