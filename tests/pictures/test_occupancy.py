"""Memory by holder: the holders add up to the total, and thinning keeps the peak."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core.graph.task_graph import Role
from membench.pictures.observed_step import ObservedStep
from membench.pictures.occupancy import occupancy, thin
from membench.planning.memory.holders import UNUSED, WORKSPACE
from membench.planning.memory.liveness import average_bytes
from membench.strategies.base import strategies
from tests.helpers.planning.runs import chain_run, network_run

SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=12)


@pytest.mark.parametrize("strategy", strategies())
def test_the_highest_column_is_the_peak_of_the_schedule(strategy: str) -> None:
    run = network_run(strategy)
    held = occupancy(run)
    assert held.total_bytes[held.peak] == run.peak_bytes
    assert all((values >= 0).all() for values in held.held_bytes.values())
    assert (np.diff(held.ends_s) >= 0).all()
    assert held.ends_s[-1] == run.step_time_s


@pytest.mark.parametrize("strategy", ["eager", "network_wide", "layrub_hybrid"])
def test_weights_and_inputs_are_there_all_the_time(strategy: str) -> None:
    run = network_run(strategy)
    held = occupancy(run).held_bytes
    for name, roles in (("weights", {Role.WEIGHT}), ("inputs", {Role.INPUT, Role.LABEL})):
        size_bytes = sum(block.size_bytes for block in run.runs[0].schedule.graph.blocks if block.role in roles)
        assert set(held[name]) == {size_bytes}


@settings(deadline=None, max_examples=40)
@given(SIZES, st.sampled_from(["eager", "layrub_hybrid"]))
def test_memory_without_workspace_or_room_is_all_blocks(sizes: list[int], strategy: str) -> None:
    run = chain_run(strategy, sizes)
    held = occupancy(run)
    assert held.total_bytes.max() == run.peak_bytes
    assert not {WORKSPACE, UNUSED} & held.held_bytes.keys()
    time_s = np.diff(held.ends_s, prepend=0.0)
    mean_bytes = (held.total_bytes * time_s).sum() / held.ends_s[-1]
    assert mean_bytes >= average_bytes(run.runs[0].schedule, run.runs[0].timeline) * (1 - 1e-9)


@settings(deadline=None, max_examples=20)
@given(SIZES, SIZES, st.integers(1, 4))
def test_a_step_in_parts_holds_what_they_hold_one_after_another(
    first: list[int], second: list[int], count: int
) -> None:
    many, last = chain_run("layrub_hybrid", first, count), chain_run("eager", second)
    whole = ObservedStep("both", (*many.runs, *last.runs))
    held = occupancy(whole)
    one, other = occupancy(chain_run("layrub_hybrid", first)), occupancy(last)
    assert held.total_bytes.tolist() == [*one.total_bytes.tolist() * count, *other.total_bytes]
    assert held.ends_s[-1] == pytest.approx(whole.step_time_s)
    assert held.total_bytes[held.peak] == whole.peak_bytes


@settings(deadline=None, max_examples=40)
@given(SIZES, st.integers(1, 20))
def test_thinning_keeps_peak_and_end(sizes: list[int], columns: int) -> None:
    run = chain_run("layrub_hybrid", sizes)
    full = occupancy(run)
    thinned = thin(full, columns)
    assert len(thinned.ends_s) <= max(columns, 1)
    assert thinned.total_bytes.max() == full.total_bytes.max()
    assert thinned.ends_s[-1] == full.ends_s[-1]
    assert thinned.held_bytes.keys() == full.held_bytes.keys()
