"""Descriptions of updates: what they accept and refuse, and copies of optimizers."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.step.optimizer import (
    PartOfOptimizer,
    WeightUpdate,
    copy_of_optimizer,
    described_update,
    made_optimizer,
    steps_as_its_class,
)
from membench.models.muon import MuonAndAdamW
from tests.helpers.steps.updates import OPTIMIZERS, WAYS_OF_OPTIMIZERS


def described(name: str, **options: Any) -> WeightUpdate:
    update: WeightUpdate = configuration.instantiate(configuration.read("optimizer", name) | options)
    return update


def test_a_name_is_that_of_the_class() -> None:
    made = torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    for optimizer in (torch.optim.Adam, partial(partial(torch.optim.Adam, lr=1.0), fused=True), made):
        assert WeightUpdate(optimizer).name == "Adam"
    assert described("adamw").name == "adamw"


def test_options_of_a_file_are_those_of_the_class() -> None:
    update = described("adamw", fused=True, weight_decay=0.5, betas=[0.5, 0.6])
    made = made_optimizer(update, [nn.Parameter(torch.zeros(2))])
    assert isinstance(made, torch.optim.AdamW)
    found = {key: made.defaults[key] for key in ("fused", "foreach", "weight_decay", "betas", "lr")}
    assert found == {"fused": True, "foreach": None, "weight_decay": 0.5, "betas": (0.5, 0.6), "lr": 1e-3}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"gradients": "gone"}, "gradients 'gone' is not known; there are: freed, freed_late, kept"),
        ({"in_backward": 1}, "in_backward is true or false"),
        ({"ema": "yes"}, "ema is true or false"),
        ({"fused": "maybe"}, "fused is true or false"),
        ({"in_backward": True, "gradients": "kept"}, "in_backward=True frees each gradient"),
    ],
)
def test_other_values_are_refused_by_name(options: dict[str, Any], error: str) -> None:
    with pytest.raises(MembenchError, match=error):
        described("adamw", **options)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "absent", None)
    with pytest.raises(
        MembenchError, match="optimizer 'lion' is of absent, which is not installed: pip install absent"
    ):
        described_update("lion", "absent.optim.Lion")


def test_a_copy_has_all_attributes_and_shares_nothing() -> None:
    matrix, vector = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    original = MuonAndAdamW([matrix, vector])
    for weight in (matrix, vector):
        weight.grad = torch.ones_like(weight)
    original.step()
    others = {id(each): nn.Parameter(torch.ones_like(each)) for each in (matrix, vector)}
    copied = copy_of_optimizer(original, others)
    for other in others.values():
        other.grad = torch.ones_like(other)
    before = matrix.clone(), original.state[matrix]["momentum_buffer"].clone()
    copied.step()
    assert torch.equal(matrix, before[0])
    assert torch.equal(original.state[matrix]["momentum_buffer"], before[1])
    assert set(copied.state) == set(others.values())


# ---- parts ----------------------------------------------------------------------------------------------


def matrices_and_vectors() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in ((6, 5), (6,), (4, 6), (), (3, 4), (3,))]


def run_steps(optimizer: torch.optim.Optimizer, weights: list[nn.Parameter], ends: list[list[nn.Parameter]]) -> None:
    """Step three times under a schedule of learning rates, as a whole or on some weights after others."""
    parts = [PartOfOptimizer(optimizer, each) for each in ends]
    has_rate = "lr" in optimizer.param_groups[0]  # otherwise optimizers among its attributes have it
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) if has_rate else None
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        for step in parts or [optimizer]:
            step.step()
        if schedule:
            schedule.step()


def check_parts(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Check that a step in parts changes weights and states as a whole one does, bit for bit."""
    whole, parts = matrices_and_vectors(), matrices_and_vectors()
    ours, theirs = make(parts), make(whole)
    run_steps(theirs, whole, [])
    run_steps(ours, parts, [parts[4:], parts[1:3], [parts[3]], [parts[0]]])
    for our, their in zip(parts, whole, strict=True):
        assert torch.equal(our, their)
        assert ours.state[our].keys() == theirs.state[their].keys()
        for key, state in ours.state[our].items():
            other = theirs.state[their][key]
            assert torch.equal(state, other) if isinstance(state, Tensor) else state == other
    assert ours.state_dict()["param_groups"] == theirs.state_dict()["param_groups"]


@pytest.mark.filterwarnings("error")  # such as of a schedule that knows of no step
@pytest.mark.parametrize(("name", "options"), WAYS_OF_OPTIMIZERS)
def test_a_step_in_parts_changes_the_same_bits(name: str, options: dict[str, bool]) -> None:
    def make(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [{"params": weights[::2], "lr": 0.01}, {"params": weights[1::2], "lr": 0.02}]
        return OPTIMIZERS[name](groups, **options)

    check_parts(make)


def test_an_optimizer_of_optimizers_steps_in_parts() -> None:
    check_parts(partial(MuonAndAdamW, lr=0.01))


class Counting(torch.optim.SGD):
    """Sets an attribute of its own in each step."""

    def step(self, closure: Any = None) -> None:
        self.updated = [weight for group in self.param_groups for weight in group["params"]]
        super().step(closure)


def test_what_a_part_sets_is_set_on_the_optimizer() -> None:
    weights = matrices_and_vectors()
    optimizer = Counting(weights, lr=0.1)
    PartOfOptimizer(optimizer, weights[:2]).step()
    assert list(map(id, optimizer.updated)) == list(map(id, weights[:2]))
    assert len(optimizer.param_groups[0]["params"]) == len(weights)


def test_hooks_keep_an_optimizer_whole() -> None:
    weights = matrices_and_vectors()
    optimizer = torch.optim.SGD(weights)
    part = PartOfOptimizer(optimizer, weights)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert steps_as_its_class(optimizer)
    hook = optimizer.register_step_post_hook(lambda *_: None)
    assert not steps_as_its_class(optimizer)
    with pytest.raises(MembenchError, match="SGD has got a hook on its step"):
        part.step()
    hook.remove()
    part.step()
    of_all = register_optimizer_step_pre_hook(lambda *_: None)
    assert not steps_as_its_class(optimizer)
    of_all.remove()
    optimizer.step = lambda: None  # type: ignore[method-assign, assignment]
    assert not steps_as_its_class(optimizer)
