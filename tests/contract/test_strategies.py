"""The contract of every strategy on every network: exact results, exact peak, a valid schedule."""

import pytest

from membench.conformance.networks import NETWORKS, OF_EVERY_KIND
from membench.conformance.plans import check_budget, check_copies, check_repeats
from membench.conformance.steps import check_exact
from membench.steps.plan import plan
from tests.helpers.devices import allocator_peak_bytes
from tests.helpers.networks.contract import COST, EACH_NETWORK, ONLY_EXHAUSTIVE, reference
from tests.helpers.steps.checks import check_results_and_peak, step_of
from tests.helpers.steps.variants import EACH_VARIANT, OPTIONS, VARIANTS, marks_of, planned

DEEP = {"densenet", "resnet18"}
"""Networks that take half of the time; `make test-slow` runs variants on them whose kind another one has."""
MAY_MOVE_WEIGHTS = {
    "auto",
    "greedysnake",
    "joint",
    "megatrain",
    "ratel",
    "superoffload",
    "zero_infinity",
    "zero_offload",
}
"""Variants that keep weights in host memory, always or where nothing else is enough."""
SEARCHES = {"auto", "joint"}
"""Variants that make many plans within a budget, which takes them seconds on deeper networks."""
EACH_VARIANT_AND_NETWORK = [
    pytest.param(variant, name, marks=pytest.mark.exhaustive if is_exhaustive else marks_of(variant) if is_slow else ())
    for name in NETWORKS
    for variant in VARIANTS
    for is_slow in [variant in OPTIONS or name in DEEP]
    for is_exhaustive in [name in ONLY_EXHAUSTIVE or (variant in OPTIONS and name not in OF_EVERY_KIND)]
]


@pytest.mark.accelerator
@pytest.mark.parametrize(("variant", "network"), EACH_VARIANT_AND_NETWORK)
def test_results_and_peak_are_exact_even_when_copies_are_late_and_freed_memory_is_poisoned(
    network: str, variant: str
) -> None:
    check_results_and_peak(reference(network), planned(network, variant))


@pytest.mark.parametrize("network", EACH_NETWORK)
def test_eager_holds_no_more_than_plain_pytorch(network: str) -> None:
    schedule = planned(network, "eager")
    assert schedule.peak_bytes - schedule.graph.external_bytes <= reference(network).peak_bytes * 1.01


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_is_copied_twice_and_all_of_it_comes_back(variant: str) -> None:
    check_copies(planned("resnet18", variant))


@pytest.mark.parametrize("variant", EACH_VARIANT)
def test_a_budget_is_kept_or_refused(variant: str) -> None:
    network = "vit" if variant in SEARCHES else "resnet18"
    graph, schedule = reference(network).captured.graph, planned(network, variant)
    check_budget(graph, VARIANTS[variant], COST, schedule, moves_weights=variant in MAY_MOVE_WEIGHTS)
    limited = plan(graph, VARIANTS[variant], COST, schedule.peak_bytes)
    assert limited.peak_bytes == schedule.peak_bytes or variant == "joint"  # which may find a plan that holds less


@pytest.mark.parametrize("variant", VARIANTS)
def test_schedules_are_deterministic_pickle_and_print(variant: str) -> None:
    check_repeats(reference("squeezenet").captured.graph, VARIANTS[variant], COST, planned("squeezenet", variant))


@pytest.mark.accelerator
def test_the_step_gives_its_memory_back() -> None:
    case = reference("squeezenet")
    with step_of(case, planned("squeezenet", "layrub_hybrid"), chaos=None) as step:
        peaks = [allocator_peak_bytes(lambda: check_exact(case, step)) for _ in range(3)]
    assert peaks[1] == peaks[2]
