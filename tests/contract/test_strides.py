"""Strides of one-element dimensions and of gradients, by which kernels choose: plain PyTorch's bits and bytes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from membench.capture.capture import Captures
from membench.core.step.workload import Workload
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import strategies
from tests.helpers.networks.contract import COST, Layer


def _attention(m: Layer, x: Tensor) -> Tensor:
    heads = (each(x).unflatten(2, (-1, 1)).transpose(1, 2) for each in (m.q, m.k, m.v))
    return functional.scaled_dot_product_attention(*heads, dropout_p=0.1).transpose(1, 2).flatten(2).mean(1)


def _of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], tuple[nn.Module, tuple[int, ...]]]:
    def forward(m: Layer, x: Tensor) -> Tensor:
        hidden = m.q(x)
        return function(hidden.t(), hidden.sigmoid()).t()

    return lambda: (Layer(forward, q=nn.Linear(8, 8)), (8, 8))


CASES: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "heads of one element": lambda: (
        Layer(_attention, q=nn.Linear(2, 2), k=nn.Linear(2, 2), v=nn.Linear(2, 2)), (1, 33, 2),
    ),
    "attention without weights": lambda: (
        Layer(
            lambda m, x: m.inner(x, x, x, need_weights=False)[0].mean(1),
            inner=nn.MultiheadAttention(2, 2, dropout=0.2, batch_first=True),
        ), (4, 42, 2),
    ),
    **{
        f"encoder of {heads} heads, batch {batch}": lambda heads=heads, batch=batch: (  # type: ignore[misc]
            Layer(
                lambda m, x: m.inner(x).mean(1),
                inner=nn.TransformerEncoderLayer(4, heads, 8, dropout=0.1, batch_first=True),
            ), (batch, 28, 4),
        )
        for heads in (1, 2, 4) for batch in (1, 2)
    },
    "fmax": _of_two(torch.fmax),
    "fmin": _of_two(torch.fmin),
    "maximum": _of_two(torch.maximum),
    "minimum": _of_two(torch.minimum),
    "clamp from both sides": _of_two(lambda one, other: one.clamp(other - 1, other)),
    "clamp from below": _of_two(lambda one, other: one.clamp(min=other)),
    "clamp from above": _of_two(torch.clamp_max),
    "clamped to a minimum": _of_two(torch.clamp_min),
}  # fmt: skip


@pytest.mark.parametrize("strategy", ["eager", "network_wide"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_the_same_bits_and_the_peak_is_predicted(name: str, strategy: str) -> None:
    torch.manual_seed(0)
    module, shape = CASES[name]()
    inputs = [torch.randn(shape) for _ in range(3)]
    work = Workload(name, module, lambda output: output.square().mean(), (inputs[0],))
    step = build_step(Captures(work), COST, StepRequest(strategies()[strategy]()))
    for number, each in enumerate(inputs):
        found = []
        for run in (lambda x: module(x).square().mean().backward(), lambda x: step((x,), ())):
            torch.manual_seed(number)
            module.zero_grad()
            run(each)
            found.append([weight.grad.clone() for weight in module.parameters() if weight.grad is not None])
        assert found[0] and all(one.equal(other) for one, other in zip(*found, strict=True))
    module.zero_grad()
    assert step._measure_peak() == step.predicted_peak_bytes
    step.close()
