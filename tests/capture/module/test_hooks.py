"""Hooks in a capture: what they compute is right in every step, what they do in Python is told."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import membench


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


DATA = torch.ones(2, 3), torch.tensor([0, 1])


def check_step(module: nn.Module) -> None:
    """Check two steps against plain PyTorch."""
    step = membench.compile(module, nn.CrossEntropyLoss(), DATA)
    for _ in range(2):
        loss = step(*DATA)
        gradients = [weight.grad.clone() for weight in module.parameters()]
        module.zero_grad()
        expected = nn.CrossEntropyLoss()(module(DATA[0]), DATA[1])
        expected.backward()
        assert loss.equal(expected.detach())
        assert all(g.equal(weight.grad) for g, weight in zip(gradients, module.parameters(), strict=True))
        module.zero_grad()


def test_a_hook_that_changes_a_result_is_a_part_of_every_step(caplog: pytest.LogCaptureFixture) -> None:
    module = network()
    module[0].register_forward_hook(lambda _, given, output: 2 * output)
    module[2].register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    check_step(module)
    assert not caplog.records


def test_a_hook_that_returns_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    module, seen = network(), list[Any]()
    handle = module[1].register_forward_hook(lambda _, given, output: seen.append(output.shape))
    hooks = dict(module[1]._forward_hooks)
    with caplog.at_level(logging.WARNING, "membench"):
        membench.compile(module, nn.CrossEntropyLoss(), DATA)
    [record] = caplog.records
    assert "of 1; they were called at the capture, and steps will not call them" in record.getMessage()
    assert seen
    assert dict(module[1]._forward_hooks) == hooks
    handle.remove()
    check_step(module)


@contextmanager
def hook_of_every_module(hook: Any) -> Iterator[None]:
    handle = register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def test_a_hook_of_every_module_that_changes_results_is_a_part_of_every_step() -> None:
    with hook_of_every_module(lambda of, _, output: 2 * output if isinstance(of, nn.Linear) else None):
        check_step(network())


def test_a_hook_of_every_module_runs_once_around_a_wrapped_module() -> None:
    module = network()
    with hook_of_every_module(lambda of, _, output: 2 * output):
        expected = module(DATA[0])
        assert membench.wrap(module, example=DATA[0])(DATA[0]).equal(expected)


def test_a_hook_of_every_module_that_returns_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    seen = list[Any]()
    with (
        hook_of_every_module(lambda of, given, output: seen.append(type(of))),
        caplog.at_level(logging.WARNING, "membench"),
    ):
        membench.compile(network(), nn.CrossEntropyLoss(), DATA)
    [record] = caplog.records
    assert "of every module; they were called at the capture" in record.getMessage()
    assert nn.Linear in seen
