"""A run of a training: its record names the threads that the network trained with."""

import pytest
import torch

from membench.core import configuration
from membench.core.record import Outcome
from membench.lab.training.runs import run_seed
from membench.lab.training.threads import USER_S_VARIABLE, use_threads


@pytest.mark.slow
def test_a_small_network_trains_with_one_thread_and_the_record_has_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(USER_S_VARIABLE, raising=False)
    recipe = {"epochs": 1, "batch_size": 512, "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.0}
    described = {
        "model": configuration.read("model", "digits_cnn"),
        "data": configuration.read("data", "digits"),
        "strategy": configuration.read("strategy", "eager"),
        "backend": {"name": "cpu"},
        "budget": None,
        "recipe": recipe | {"seed": 0},
    }
    with use_threads(2):
        record = run_seed(described)
        assert torch.get_num_threads() == 2
    assert record.outcome is Outcome.OK
    assert record.provenance["threads"] == 1
