"""Strategies by name."""

import pytest

from membench.core.errors import UnsupportedStrategy
from membench.core.task_graph import Mode
from membench.strategies import eager
from membench.strategies.base import find_strategy, strategies


class Twin(eager.Eager):
    """It has forgotten to name itself."""


def test_a_name_belongs_to_one_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert strategies()["eager"] is find_strategy("eager") is eager.Eager
    monkeypatch.setattr(eager, "Twin", Twin, raising=False)
    with pytest.raises(UnsupportedStrategy, match=r"test_base\.Twin needs a name of its own, not 'eager'"):
        find_strategy("eager")


def test_each_mode_has_the_strategies_that_name_it() -> None:
    training, inference = strategies(Mode.TRAINING), strategies(Mode.INFERENCE)
    assert {"eager", "mmcnn"} <= inference.keys() and {"eager", "layrub_hybrid"} <= training.keys()
    assert "mmcnn" not in training and "layrub_hybrid" not in inference
