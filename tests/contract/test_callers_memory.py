"""The memory of a step's caller: counted once where tensors share it, and measured on the tensors themselves."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import membench
from membench.core.errors import ShapeMismatch
from membench.core.libraries.shared_memory import distinct_bytes
from membench.execution.measurement import cpu_peak_bytes

STRATEGIES = ("eager", "network_wide", "zero_offload")


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        self.register_buffer("whole", torch.zeros(16))
        self.register_buffer("part", self.whole[:4])
        self.view = self.whole[8:]

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        self.whole.add_(1)
        both = self.first(one) * 3 + one + other * one + self.first(other) + other
        hidden: Tensor = self.head(torch.relu(both + self.part.mean() + self.view.mean()))
        return hidden


def _loss(outputs: Tensor, targets: Tensor, *others: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets) + sum((outputs.mean() - o.mean()).square() for o in others)


Inputs = Callable[[nn.Module], tuple[Tensor, Tensor]]
SHARED: dict[str, tuple[Inputs, int]] = {
    "one twice": (lambda module: 2 * (torch.randn(16, 16),), 1024),
    "a view": (lambda module: (x := torch.randn(16, 16), x[:]), 1024),
    "transposed": (lambda module: (x := torch.randn(16, 16), x.t()), 1024),
    "overlapping parts": (lambda module: ((x := torch.randn(20, 16))[:16], x[4:]), 768),
    "a weight": (lambda module: (module.first.weight.detach(), torch.randn(16, 16)), 1024),
}
"""Inputs by their name, and how many bytes of them are counted already."""


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SHARED)
def test_shared_memory_is_predicted_and_measured_once(name: str, strategy: str) -> None:
    torch.manual_seed(0)
    module, targets = _Two(), torch.arange(16) % 4
    make, shared_bytes = SHARED[name]
    peaks = []
    for inputs in (make(module), (torch.randn(16, 16), torch.randn(16, 16))):
        step = membench.compile(module, _loss, (inputs, (targets,)), strategy=strategy)
        assert step.predicted_peak_bytes == step.measure().peak_bytes
        peaks.append(step.predicted_peak_bytes)
        step.close()
    assert peaks[1] - peaks[0] == shared_bytes


def test_a_target_that_is_a_view_of_an_input_is_counted_once_in_micro_batches_too() -> None:
    module, inputs = nn.Linear(16, 16), torch.randn(6, 16)
    for micro_batch in (6, 4):
        batch = ((inputs,), (inputs[:, :],))
        step = membench.compile(module, functional.mse_loss, batch, strategy="eager", micro_batch=micro_batch)
        apart = membench.compile(
            module, functional.mse_loss, ((inputs,), (inputs.clone(),)), strategy="eager", micro_batch=micro_batch
        )
        assert step.predicted_peak_bytes == step.measure().peak_bytes
        assert apart.predicted_peak_bytes - step.predicted_peak_bytes == micro_batch * 64
        assert apart.measure().peak_bytes == apart.predicted_peak_bytes


def test_measuring_counts_the_tensors_and_not_the_graph() -> None:
    inputs = torch.randn(8, 16)
    step = membench.compile(nn.Linear(16, 4), lambda o: o.mean(), ((inputs,), ()), strategy="eager", optimizer="adam")
    measured = step.measure().peak_bytes
    step.workload.module.weight.data = step.workload.module.weight.data.clone()
    assert step.predicted_peak_bytes == measured == step.measure().peak_bytes
    twice = torch.empty(2, 4, 16)[1]  # the weight's bytes alone count, not those of what it is a part of
    step.workload.module.weight.data = twice.copy_(step.workload.module.weight.data)
    assert step.measure().peak_bytes == measured


def test_a_call_that_does_not_share_what_the_example_shares_is_refused() -> None:
    module, targets, one = _Two(), torch.arange(16) % 4, torch.randn(16, 16)
    step = membench.compile(module, _loss, ((one, one), (targets,)), strategy="eager")
    with pytest.raises(ShapeMismatch, match="compile with an example like the calls"):
        step((one, one.clone()), (targets,))
    other = torch.randn(16, 16)
    step((other, other), (targets,))
    anew = membench.compile(module, _loss, ((one, one), (targets,)), strategy="eager", shapes="any")
    anew((one, one.clone()), (targets,))
    assert len(anew.steps) == 2


ASKED: dict[str, Callable[[nn.Module], tuple[tuple[Tensor, Tensor], Tensor]]] = {
    "one twice": lambda module: ((x := torch.randn(16, 16, requires_grad=True), x), x),
    "a detached view": lambda module: ((x := torch.randn(16, 16, requires_grad=True), x.detach()[:]), x),
    "a weight twice": lambda module: (2 * (module.first.weight,), module.first.weight),
    "a weight and another": lambda module: ((module.first.weight, torch.randn(16, 16)), module.first.weight),
    "apart": lambda module: ((x := torch.randn(16, 16, requires_grad=True), torch.randn(16, 16)), x),
}


@pytest.mark.parametrize("strategy", ["eager", "network_wide", "layrub_hybrid"])
def test_wrapped_calls_sum_gradients_as_plain_pytorch_and_hold_what_is_predicted(strategy: str) -> None:
    torch.manual_seed(0)
    module = _Two()
    plain = copy.deepcopy(module)
    plain.part, plain.view = plain.whole[:4], plain.whole[8:]
    wrapped = membench.wrap(module, strategy=strategy)
    for name, make in ASKED.items():
        found = []
        for each in (plain, wrapped):
            torch.manual_seed(1)
            inputs, leaf = make(each)
            _loss(each(*inputs), torch.arange(16) % 4).backward()
            found.append([leaf.grad, *(weight.grad for weight in each.parameters()), each.whole.clone()])
            each.zero_grad()
        assert all(one.equal(other) for one, other in zip(*found, strict=True)), name
        step = wrapped.wrapped_calls.steps[-1]
        inputs, leaf = make(wrapped)

        def run(inputs: tuple[Tensor, Tensor] = inputs) -> None:
            output = wrapped(*inputs)
            output.backward(torch.ones_like(output))

        measured_bytes = cpu_peak_bytes(run, step.backends)
        wrapped.zero_grad()
        plain.whole.copy_(wrapped.whole)
        held_bytes = distinct_bytes([*wrapped.parameters(), *wrapped.buffers(), *inputs])
        assert held_bytes + measured_bytes == step.predicted_peak_bytes, name
    assert len(wrapped.wrapped_calls.steps) == len(ASKED)


@pytest.mark.parametrize("strategy", ["eager", "network_wide"])
def test_a_wrapped_module_that_draws_holds_no_state_of_the_generator(strategy: str) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    wrapped, inputs = membench.wrap(module, strategy=strategy), torch.randn(4, 8)

    def run() -> None:
        output = wrapped(inputs)
        output.backward(torch.ones_like(output))

    run()
    module.zero_grad()
    [step] = wrapped.wrapped_calls.steps
    held_bytes = distinct_bytes([*module.parameters(), inputs])
    assert held_bytes + cpu_peak_bytes(run, step.backends) == step.predicted_peak_bytes
