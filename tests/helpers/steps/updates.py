"""Optimizers for tests, and steps that update their weights, next to the loop of plain PyTorch."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from membench.backends.cpu import Chaos
from membench.capture.capture import CapturedStep, capture
from membench.capture.update.captured_update import CapturedUpdate
from membench.core.graph.schedule import Schedule
from membench.core.step.optimizer import Gradients, WeightUpdate
from membench.core.step.workload import Workload
from membench.models.muon import MuonAndAdamW
from membench.planning.rewrites.update import add_update
from membench.steps.plan import plan
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.placement import place_workload
from membench.steps.real.real_update import RealUpdate
from membench.strategies.base import Strategy
from tests.helpers.devices import backend_of
from tests.helpers.networks.contract import COST

MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
WAYS: dict[str, dict[str, bool]] = {
    "foreach": {"foreach": True},
    "for_loop": {"foreach": False},
    "fused": {"fused": True},
}
"""The ways in which torch's optimizers run over the weights."""
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    **{name: getattr(torch.optim, name) for name in (
        "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop",
        "SGD")},
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True, maximize=True),
    "amsgrad": partial(torch.optim.AdamW, amsgrad=True),
    "centered": partial(torch.optim.RMSprop, centered=True, momentum=0.9),
}  # fmt: skip
"""Every class of torch for dense weights on the CPU but Muon, which takes matrices only; some with options."""
EVERY_OPTIMIZER = {**OPTIMIZERS, "Muon": MuonAndAdamW}
"""These and Muon, for what are matrices."""
WAYS_OF_OPTIMIZERS: list[tuple[str, dict[str, bool]]] = [
    *((name, {"foreach": foreach}) for name in OPTIMIZERS for foreach in (False, True)),
    *((name, {"fused": True}) for name in ("Adagrad", "Adam", "AdamW", "SGD", "momentum", "nesterov", "amsgrad")),
]
STEPS = 2


def captured(name: str, *, options: dict[str, Any] | None = None, **of_update: Any) -> CapturedUpdate:
    """Return the update by an optimizer of `MAKERS` on a GPU, without an optimizer of a real step."""
    return CapturedUpdate(WeightUpdate(partial(MAKERS[name], **(options or {})), name=name, **of_update))


def updating_step(
    work: Workload,
    optimizer: torch.optim.Optimizer,
    by: Strategy | Schedule,
    *,
    captured: CapturedStep | None = None,
    chaos: Chaos | None = None,
    disk_folder: Path | None = None,
) -> CompiledStep:
    """Return a step that updates the weights and frees their gradients.

    Args:
        by: a strategy, or a schedule of the step.
        captured: the step without the update; None: it is captured.
        chaos, disk_folder: see `backend_of`.
    """
    update = RealUpdate(optimizer, work.module, Gradients.FREED, COST)
    captured = captured or capture(work)
    schedule = by if isinstance(by, Schedule) else plan(add_update(captured.graph, update), by, COST, None)
    backend = backend_of(schedule, chaos, disk_folder)
    backend.tensors.update = applied = update.of(schedule)
    work = place_workload(work, captured, backend)
    update.follow_weights()
    return CompiledStep(work, captured, schedule, backend, update=update, applied=applied)


def plain_training(
    work: Workload, make: Callable[..., torch.optim.Optimizer], steps: int = STEPS, *, on_host: bool = False
) -> Iterator[tuple[Tensor, nn.Module, torch.optim.Optimizer]]:
    """Yield the loss, a copy of the module and its optimizer after each step of PyTorch's own loop.

    Args:
        on_host: weights live in host memory and are updated there.
    """
    module = deepcopy(work.module)
    updated = deepcopy(module).cpu() if on_host else module
    optimizer = make(updated.parameters())
    assert work.loss is not None
    for seed in range(steps):
        torch.manual_seed(seed)
        loss = work.loss(module(*work.inputs), *work.targets)
        loss.backward()
        if on_host:
            _move_gradients(module, updated)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for weight, own in zip(module.parameters(), updated.parameters(), strict=True):
                weight.copy_(own)
        yield loss.detach(), module, optimizer


def _move_gradients(module: nn.Module, other: nn.Module) -> None:
    for weight, own in zip(module.parameters(), other.parameters(), strict=True):
        own.grad = None if weight.grad is None else weight.grad.cpu()
        weight.grad = None


def plain_steps(work: Workload, make: Callable[..., torch.optim.Optimizer], *, on_host: bool = False) -> nn.Module:
    """Return a copy of a module after some steps of `plain_training`."""
    *_, (_, module, _) = plain_training(work, make, on_host=on_host)
    return module


def run_steps(work: Workload, step: Callable[..., Tensor]) -> None:
    """Run a step as often as `plain_steps`, with the same random numbers."""
    for seed in range(STEPS):
        torch.manual_seed(seed)
        step(work.inputs, work.targets)


def first_difference(module: nn.Module, other: nn.Module) -> str:
    """Return the name of the first weight or buffer that is not the same bits; empty without any."""
    ours, theirs = module.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    return next((name for name in ours if not torch.equal(ours[name].cpu(), theirs[name].cpu())), "")


Values = dict[str, tuple[Tensor, dict[str, Tensor]]]
"""A weight and its states, by its name."""


def values(module: nn.Module, optimizer: torch.optim.Optimizer) -> Values:
    names = [name for name, _ in module.named_parameters()]
    states = optimizer.state_dict()["state"]
    return {
        name: (
            weight.detach().to("cpu", copy=True),
            {
                key: torch.as_tensor(value).to("cpu", copy=True)
                for key, value in states.get(number, {}).items()
                if value is not None
            },
        )
        for number, (name, weight) in enumerate(zip(names, module.parameters(), strict=True))
    }


def same(one: tuple[Tensor, dict[str, Tensor]], other: tuple[Tensor, dict[str, Tensor]]) -> bool:
    return (
        torch.equal(one[0], other[0])
        and one[1].keys() == other[1].keys()
        and all(torch.equal(one[1][key], other[1][key]) for key in one[1])
    )


def assert_close(found: Values, expected: Values) -> None:
    """Check weights and states that a GPU may have updated, whose kernels round in other places than the host's."""
    for name, (weight, states) in expected.items():
        torch.testing.assert_close(found[name][0], weight)
        torch.testing.assert_close(found[name][1], states)


def assert_same(found: Values, expected: Values) -> None:
    assert [name for name in expected if not same(found[name], expected[name])] == []
