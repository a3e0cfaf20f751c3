"""Deferred updates: which ones, where they are, that the graph stays one of a step, and what is refused."""

import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core.errors import InvalidSchedule, UnsupportedStrategy
from membench.core.graph.changed_tasks import numbered
from membench.core.graph.task_graph import Phase, Role, Task, TaskGraph
from membench.planning.checking.pending import pending_hazard
from membench.planning.checking.validate import validate
from membench.planning.rewrites.deferred import defer_updates, deferred_updates
from membench.planning.rewrites.rewrite import update_on_host
from membench.planning.rewrites.update import add_update
from membench.steps.plan import plan
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import random_layers, random_reference
from tests.helpers.steps.host_updates import HostUpdates
from tests.helpers.steps.updates import captured


@cache
def updated(seed: int) -> TaskGraph:
    """Return a random network's step with its update on the host, in parts."""
    graph = random_reference(random_layers(random.Random(seed), seed), seed).captured.graph
    return update_on_host(add_update(graph, captured("adam", options={"foreach": False})))


def weight_bytes(graph: TaskGraph, tasks: list[Task]) -> int:
    written = {block for task in tasks for block in task.writes}
    return graph.size_bytes(block for block in written if graph.blocks[block].role is Role.WEIGHT)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 5), share=st.floats(0, 1))
def test_a_share_is_deferred_before_its_weights_are_used_and_nothing_else_changes(seed: int, share: float) -> None:
    graph = updated(seed)
    found = defer_updates(graph, share)
    deferred = deferred_updates(found)
    assert sorted(task.name for task in found.tasks) == sorted(task.name for task in graph.tasks)
    others = [task.name for task in found.tasks if task not in deferred]
    assert others == [task.name for task in graph.tasks if task.name in others]
    for task in deferred:
        before = found.tasks[: task.index]
        assert not {b for each in before if not each.on_host for b in (*each.reads, *each.writes)} & {*task.writes}
    updates = [task for task in graph.tasks if task.phase is Phase.UPDATE]
    largest = max(weight_bytes(graph, [task]) for task in updates)
    assert abs(weight_bytes(found, deferred) - share * weight_bytes(graph, updates)) <= largest
    assert not pending_hazard(found)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 5), share=st.sampled_from([0.3, 1.0]))
def test_pending_gradients_are_at_home_in_host_memory_and_made_anew(seed: int, share: float) -> None:
    found = defer_updates(updated(seed), share)
    pending = {block.index for block in found.blocks if block.role is Role.PENDING_GRADIENT}
    assert pending == {
        b for task in deferred_updates(found) for b in task.reads if b in {c for t in found.tasks for c in t.creates}
    }
    schedule = plan(updated(seed), HostUpdates(deferred_share=share), COST, None)
    assert schedule.graph.external_bytes == updated(seed).external_bytes
    assert not pending & schedule.graph.returned


def test_all_or_none() -> None:
    graph = updated(0)
    assert defer_updates(graph, 0.0) is graph
    updates = [task for task in graph.tasks if task.phase is Phase.UPDATE]
    assert len(deferred_updates(defer_updates(graph, 1.0))) == len(updates) > 1


def test_an_update_as_a_whole_is_refused() -> None:
    graph = updated(0)
    updates = [task for task in graph.tasks if task.on_host]
    whole = replace(
        updates[-1],
        reads=tuple({block for task in updates for block in task.reads}),
        writes=tuple({block for task in updates for block in task.writes}),
    )
    tasks = numbered([*(task for task in graph.tasks if not task.on_host), whole])
    with pytest.raises(UnsupportedStrategy, match="deferred_share needs an update in parts"):
        defer_updates(replace(graph, tasks=tasks), 0.5)


@pytest.mark.parametrize("role", [Role.ACCUMULATED, Role.WEIGHT_GRADIENT])
def test_gradients_that_are_not_freed_behind_the_update_are_refused(role: Role) -> None:
    graph = updated(0)
    blocks = [replace(b, role=role) if b.role is Role.APPLIED_GRADIENT else b for b in graph.blocks]
    with pytest.raises(UnsupportedStrategy, match="kept behind it, or summed over micro-batches"):
        defer_updates(replace(graph, blocks=tuple(blocks)), 0.5)


def test_a_weight_that_is_used_behind_its_update_is_not_deferred() -> None:
    graph = updated(0)
    first = next(task for task in graph.tasks if task.on_host)
    weight = next(block for block in first.writes if graph.blocks[block].role is Role.WEIGHT)
    reader = replace(next(task for task in graph.tasks if weight in task.reads), name="reader", creates=(), writes=())
    changed = replace(graph, tasks=numbered([*graph.tasks, reader]))
    assert first.name not in {task.name for task in deferred_updates(defer_updates(changed, 1.0))}


@pytest.mark.parametrize("seed", range(4))
def test_mutants_of_the_order_are_found(seed: int) -> None:
    """A deferred update that is moved anywhere behind a use of its weights, or is lost, is no steady state."""
    rng = random.Random(seed)
    schedule = plan(updated(seed), HostUpdates(deferred_share=0.7), COST, None)
    graph = schedule.graph
    for task in deferred_updates(graph):
        others = [each for each in graph.tasks if each is not task]
        first = next(n for n, each in enumerate(others) if {*task.writes} & {*each.reads} and not each.on_host)
        place = rng.randint(first + 1, len(others))
        moved = replace(graph, tasks=numbered([*others[:place], task, *others[place:]]))
        with pytest.raises(InvalidSchedule, match=r"is used before|is applied in the step that makes it"):
            validate(replace(schedule, graph=moved))
        assert "never applied" in pending_hazard(replace(graph, tasks=numbered(others)))
    kept = [replace(task, creates=()) for task in graph.tasks]
    assert "no task makes it" in pending_hazard(replace(graph, tasks=tuple(kept)))
