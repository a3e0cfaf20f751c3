"""Capuchin: the order of evictions, by free time first and by saved bytes per second then."""

import pytest

from membench.core.graph.schedule import Offload
from membench.core.graph.task_graph import TaskGraph
from membench.planning.choices.problem import Problem
from membench.steps.plan import plan
from membench.strategies.capuchin import Capuchin, Evictions
from tests.helpers.planning.chains import chain_of_sizes
from tests.helpers.planning.costs import UnitCost

SLOW_TO_COPY = [40, 1, 40, 1, 40]
"""Copies of the large ones take longer than the whole step, a forward task 2.5 seconds."""


def evictions(graph: TaskGraph) -> list[tuple[str, bool]]:
    problem = Problem(graph, UnitCost(), 1)
    found, order = Evictions(problem), []
    while chosen := found.next():
        [block] = problem.units[chosen[0]].blocks
        order.append((graph.blocks[block].name, chosen[1]))
    return order


def test_what_time_hides_is_swapped_first_and_the_rest_recomputed_by_bytes_per_second() -> None:
    order = evictions(chain_of_sizes(SLOW_TO_COPY))
    assert order[:2] == [("activation1", True), ("activation3", True)]  # the longer absence first
    assert {name for name, is_swapped in order[2:] if not is_swapped} == {"activation0", "activation2", "activation4"}


def test_nothing_is_evicted_before_memory_lacks() -> None:
    graph = chain_of_sizes([2, 2, 2, 2])
    free = plan(graph, Capuchin(), UnitCost(), None)
    assert not any(isinstance(instruction, Offload) for instruction in free.instructions)
    tight = plan(graph, Capuchin(), UnitCost(), free.peak_bytes - 1)
    assert tight.peak_bytes < free.peak_bytes
    assert any(isinstance(instruction, Offload) for instruction in tight.instructions)


@pytest.mark.parametrize("spare_bytes", [0, 1, 2])
def test_evictions_end_as_soon_as_the_budget_is_kept(spare_bytes: int) -> None:
    graph = chain_of_sizes([1] * 6)
    budget_bytes = plan(graph, Capuchin(), UnitCost(), None).peak_bytes - spare_bytes
    schedule = plan(graph, Capuchin(), UnitCost(), budget_bytes)
    assert sum(isinstance(instruction, Offload) for instruction in schedule.instructions) == spare_bytes
