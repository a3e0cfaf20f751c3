"""`membench.compile(..., shapes="any")`: batches of several shapes, each step exact."""

import copy
import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.core.errors import MembenchError, ShapeMismatch
from membench.steps.real import kept_steps
from membench.steps.real.shaped_step import ShapedStep
from tests.helpers.steps.wrapping import check_same, state_of

CRITERION = nn.CrossEntropyLoss()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4))


def batch(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 3, generator=generator), torch.randint(4, (size,), generator=generator)


def train(module: nn.Module, step: Any) -> Any:
    optimizer, losses = torch.optim.AdamW(module.parameters(), 0.1), []
    torch.manual_seed(1)
    for size in (6, 6, 3, 6, 3):
        optimizer.zero_grad()
        losses.append(step(*batch(size)))
        optimizer.step()
    module.eval()
    losses.append(step(*batch(6)))
    module.train()
    module[0].requires_grad_(False)
    losses.append(step(*batch(3)))
    module[3].p = 0.5
    losses.append(step(*batch(3)))
    return losses, state_of(module)


def test_a_new_kind_of_batch_is_captured_when_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    plain = network()
    ours = copy.deepcopy(plain)

    def eager(inputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = CRITERION(plain(inputs), targets)
        loss.backward()
        return loss.detach()

    step = membench.compile(ours, CRITERION, batch(6), strategy="layrub_hybrid", shapes="any")
    assert isinstance(step, ShapedStep)
    assert step.measure().peak_bytes == step.plan[0].schedule.peak_bytes
    with caplog.at_level(logging.INFO, "membench"):
        check_same(train(ours, step), train(plain, eager))
    assert "a step of Sequential with inputs[0] (3, 3) float32, targets[0] (3,) int64" in caplog.messages[0]
    assert step.predicted_peak_bytes >= max(each.predicted_peak_bytes for each in step.steps)
    step.close()
    assert step.steps == ()


def test_the_step_used_the_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_steps, "MOST_KEPT", 2)
    step = membench.compile(network(), CRITERION, batch(6), shapes="any")
    for size in (5, 4, 6, 5):
        step(*batch(size))
    assert isinstance(step, ShapedStep) and len(step.steps) == 2


def test_one_optimizer_updates_after_batches_of_every_shape() -> None:
    module, plain = network(), network()
    optimizers = [torch.optim.Adam(each.parameters(), 0.1) for each in (module, plain)]
    step = membench.compile(module, CRITERION, batch(6), shapes="any", optimizer=optimizers[0])
    torch.manual_seed(2)
    for size in (6, 3, 6):
        step(*batch(size))
    torch.manual_seed(2)
    for size in (6, 3, 6):
        optimizers[1].zero_grad()
        inputs, targets = batch(size)
        CRITERION(plain(inputs), targets).backward()
        optimizers[1].step()
    optimizers[1].zero_grad()
    check_same(state_of(module), state_of(plain))


def test_fixed_shapes_are_the_default_and_any_shape_is_for_real_steps() -> None:
    step = membench.compile(network(), CRITERION, batch(6))
    with pytest.raises(ShapeMismatch, match="compile a step for each shape, .* or use .* membench.wrap"):
        step(*batch(5))
    for arguments in ({"optimizer": "adamw"}, {"backend": "simulated", "device": "k40m"}, {"exchange": "as_made"}):
        with pytest.raises(MembenchError, match="shapes='any' is for real steps of one process"):
            membench.compile(network(), CRITERION, batch(6), shapes="any", **arguments)
    with pytest.raises(MembenchError, match="shapes"):
        membench.compile(network(), CRITERION, batch(6), shapes="dynamic")
