"""Holders of memory: each role has one, and what they hold at the peak adds up to it."""

import pytest

from membench.core.graph.task_graph import Role
from membench.planning.memory.holders import held_at_peak_bytes, holder_of
from membench.strategies.base import strategies
from tests.helpers.planning.runs import network_run


def test_every_role_has_a_holder() -> None:
    assert holder_of(Role.PARTIAL_GRADIENT) == holder_of(Role.WEIGHT_GRADIENT) == "weight gradients"
    assert holder_of(Role.OPTIMIZER_STATE) == "optimizer state"


@pytest.mark.parametrize("strategy", strategies())
def test_the_holders_at_the_peak_add_up_to_it(strategy: str) -> None:
    schedule = network_run(strategy).runs[0].schedule
    parts = held_at_peak_bytes(schedule)
    assert sum(parts.values()) == schedule.peak_bytes
    assert min(parts.values()) > 0
