"""DTR: nothing is recomputed before memory lacks, and then what is cheap, large and stale."""

import pytest
import torch
from torch import nn

from membench.core.errors import MembenchError
from membench.core.graph.schedule import Offload
from membench.core.graph.task_graph import Task
from membench.steps.plan import plan
from membench.strategies.dtr import Dtr
from tests.helpers.planning.chains import chain_of_sizes, graph_of
from tests.helpers.planning.costs import UnitCost


class OneCostlyTask(UnitCost):
    """The third layer's forward task takes a hundred times as long as others."""

    def task_time_s(self, task: Task) -> float:
        return 200.0 if task.name.startswith("forward2") else 2.0


def recomputed(budget_bytes: int, cost: UnitCost) -> list[str]:
    schedule = plan(chain_of_sizes([4] * 6), Dtr(), cost, budget_bytes)
    assert not any(isinstance(instruction, Offload) for instruction in schedule.instructions)
    return [task.name for task in schedule.graph.tasks if task.is_recomputed]


def peak_bytes() -> int:
    return plan(chain_of_sizes([4] * 6), Dtr(), UnitCost(), None).peak_bytes


def test_nothing_is_recomputed_within_eagers_peak() -> None:
    assert recomputed(peak_bytes(), UnitCost()) == []


def test_a_smaller_budget_recomputes_more() -> None:
    counts = [len(recomputed(peak_bytes() - less, UnitCost())) for less in (4, 8, 12)]
    assert 0 < counts[0] < counts[1] < counts[2]


def test_a_costly_result_is_not_evicted() -> None:
    names = recomputed(peak_bytes() - 12, OneCostlyTask())
    assert names
    assert not any(name.startswith("forward2") for name in names)


def test_a_budget_is_kept_where_masks_of_dropout_are_read_again() -> None:
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.Dropout(), nn.Tanh())]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    with torch.device("meta"):
        graph = graph_of(nn.Sequential(*layers, *head), 8, 16)
    eager_bytes = plan(graph, Dtr(), UnitCost(), None).peak_bytes
    for share in (0.9, 0.8, 0.7):
        schedule = plan(graph, Dtr(), UnitCost(), int(share * eager_bytes))
        assert any(task.is_recomputed for task in schedule.graph.tasks)


def test_a_schedule_that_is_longer_than_it_may_be_is_refused() -> None:
    graph, cost = chain_of_sizes([4] * 6), UnitCost()
    budget_bytes = peak_bytes() - 12
    share = len(plan(graph, Dtr(), cost, budget_bytes).graph.tasks) / len(graph.tasks)
    assert share > 1
    assert plan(graph, Dtr(share), cost, budget_bytes) == plan(graph, Dtr(), cost, budget_bytes)
    with pytest.raises(MembenchError, match="dtr runs more than"):
        plan(graph, Dtr(0.99 * share), cost, budget_bytes)
