"""Weights shared by many time steps: their partial gradients are accumulated, not kept."""

from functools import cache

import pytest
import torch

from membench.capture.capture import capture
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.step.workload import Workload
from membench.models.lstm import SequenceLoss, language_model
from membench.planning.memory.liveness import peak_bytes
from membench.steps.plan import plan
from membench.strategies.base import find_strategy, strategies
from tests.helpers.networks.contract import COST
from tests.helpers.steps.variants import marks_of


@cache
def _graph(steps: int) -> TaskGraph:
    torch.manual_seed(0)
    tokens = torch.randint(9, (2, steps))
    module = language_model(vocabulary=9, hidden_size=8, layers=2)
    return capture(Workload("lstm", module, SequenceLoss(), (tokens,), (tokens,))).graph


@pytest.mark.parametrize("strategy", [pytest.param(name, marks=marks_of(name)) for name in strategies()])
def test_partial_gradients_do_not_pile_up(strategy: str) -> None:
    held = [
        peak_bytes(plan(_graph(steps), find_strategy(strategy)(), COST, None), frozenset({Role.PARTIAL_GRADIENT}))
        for steps in (3, 9)
    ]
    assert held[0] == held[1] > 0
