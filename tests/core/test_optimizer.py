"""Descriptions of updates: what they accept and refuse, and copies of optimizers."""

import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.muon import MuonAndAdamW
from membench.core.optimizer import WeightUpdate, copy_of_optimizer, described_update, made_optimizer


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
        ({"gradients": "gone"}, "gradients is one of freed, kept"),
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
