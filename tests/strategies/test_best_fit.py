"""TensorFlow's allocation: what fragmentation adds to memory on demand, and where it adds nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.graph.schedule import Compute
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import live_bytes
from membench.planning.pool import ALIGNMENT_BYTES
from membench.steps.plan import plan
from membench.strategies.best_fit import BestFit
from membench.strategies.eager import Eager
from tests.helpers.networks.contract import COST, reference
from tests.helpers.planning.chains import chain_of_sizes
from tests.helpers.planning.costs import UnitCost


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=12))
def test_a_chain_needs_at_least_what_eager_needs(activation_bytes: list[int]) -> None:
    graph = chain_of_sizes(activation_bytes)
    schedule = BestFit().schedule(graph, UnitCost(), None)
    validate(schedule)
    assert schedule.peak_bytes >= Eager().schedule(graph, UnitCost(), None).peak_bytes


@given(st.integers(1, 12), st.integers(1, 20).map(lambda pieces: pieces * ALIGNMENT_BYTES))
def test_activations_of_one_size_leave_no_fragments(depth: int, size_bytes: int) -> None:
    graph = chain_of_sizes([size_bytes] * depth)
    peaks = {strategy().schedule(graph, UnitCost(), None).peak_bytes for strategy in (BestFit, Eager)}
    assert len(peaks) == 1


def test_an_activation_that_fits_no_gap_makes_the_pool_grow() -> None:
    unit = ALIGNMENT_BYTES
    graph = chain_of_sizes([unit, unit, 2 * unit])
    schedule = BestFit().schedule(graph, UnitCost(), None)
    # Three activations lie in 4 units, the gradient of the third behind them in 2. When both are dead, their gaps
    # are as large as they were; all gradients after them fit.
    assert schedule.peak_bytes - graph.external_bytes == 6 * unit


@pytest.mark.parametrize("network", [pytest.param("googlenet", marks=pytest.mark.slow), "resnet18", "vit"])
def test_the_extent_never_shrinks_while_the_step_computes(network: str) -> None:
    schedule = plan(reference(network).captured.graph, BestFit(), COST, None)
    held = zip(schedule.instructions, live_bytes(schedule), strict=True)
    at_work = [held_bytes for item, held_bytes in held if isinstance(item, Compute)]
    assert at_work == sorted(at_work)
    assert at_work[-1] == schedule.peak_bytes


def test_doubling_regions_hold_more_than_a_pool_that_grows_by_what_it_lacks() -> None:
    graph = reference("googlenet").captured.graph
    exact, doubling = (plan(graph, BestFit(device), COST, None) for device in (None, "1 GB"))
    validate(doubling)
    assert exact.peak_bytes < doubling.peak_bytes < 4 * exact.peak_bytes
