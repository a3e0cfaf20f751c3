"""Random networks: branches, concatenations, in-place operators, shared weights, dropout, under every strategy."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from membench.backends.cpu import Chaos
from membench.planning.liveness import live_bytes
from membench.steps.plan import plan
from tests.helpers.checks import check_exact, check_peak, step_of
from tests.helpers.networks import COST
from tests.helpers.random_networks import PLANS, random_reference
from tests.helpers.timings import highest_bytes
from tests.helpers.variants import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layers=PLANS, seed=st.integers(0, 1000))
@example(layers=[("dropout", 0, 0), ("relu", 0, 0), ("transposed", 1, 0)], seed=0)  # permutes a gradient
def test_results_and_peak_of_random_networks_are_exact(
    variant: str, layers: list[tuple[str, int, int]], seed: int
) -> None:
    case = random_reference(layers, seed)
    schedule = plan(case.captured.graph, VARIANTS[variant], COST, None)
    with step_of(case, schedule, Chaos(seed, longest_delay_s=0.0003)) as step:
        check_exact(case, step)
        check_peak(case, step)
    assert highest_bytes(schedule) == max(live_bytes(schedule)) == schedule.peak_bytes
