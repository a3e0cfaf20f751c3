"""The contract of every strategy on every network: exact results, exact peak, a valid schedule."""

import pickle
from contextlib import suppress

import pytest

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Offload, Prefetch
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import copied_bytes, live_bytes
from membench.steps.plan import plan
from tests.helpers.devices import allocator_peak_bytes
from tests.helpers.networks.contract import COST, EACH_NETWORK, NETWORKS, ONLY_EXHAUSTIVE, reference
from tests.helpers.steps.checks import check_exact, check_results_and_peak, step_of
from tests.helpers.steps.variants import EACH_VARIANT, OPTIONS, VARIANTS, marks_of, planned

OF_EVERY_KIND = {"alexnet", "densenet", "lstm", "resnet18", "vit"}
"""Networks on which `make test` or `make test-slow` tests options; `make test-exhaustive` tests the others."""
DEEP = {"densenet", "resnet18"}
"""Networks that take half of the time; `make test-slow` runs variants on them whose kind another one has."""
MAY_MOVE_WEIGHTS = {"auto", "greedysnake", "joint", "megatrain", "ratel", "zero_infinity", "zero_offload"}
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
    schedule = planned("resnet18", variant)
    out = [i.block for i in schedule.instructions if isinstance(i, Offload)]
    back = [i.block for i in schedule.instructions if isinstance(i, Prefetch)]
    assert len(out) == len(set(out))
    at_home = {block.index for block in schedule.graph.blocks if block.host_location}
    # some of it twice: for the forward pass and for the backward pass; weights in host memory do not change without an
    # update
    assert set(out) == set(back) - at_home
    assert copied_bytes(schedule, Offload) == sum(schedule.graph.blocks[b].size_bytes for b in set(out))


@pytest.mark.parametrize("variant", EACH_VARIANT)
def test_a_budget_is_kept_or_refused(variant: str) -> None:
    network = "vit" if variant in SEARCHES else "resnet18"
    case = reference(network)
    peak_bytes = planned(network, variant).peak_bytes
    schedule = plan(case.captured.graph, VARIANTS[variant], COST, peak_bytes)
    assert max(live_bytes(schedule)) == schedule.peak_bytes <= peak_bytes
    assert schedule.peak_bytes == peak_bytes or variant == "joint"  # which may find a plan that holds less
    if not VARIANTS[variant].plans_for_budgets:
        assert schedule == planned(network, variant)
        with pytest.raises(InfeasibleSchedule):
            plan(case.captured.graph, VARIANTS[variant], COST, peak_bytes - 1)
    with suppress(InfeasibleSchedule):  # a method may find a schedule that needs less
        assert plan(case.captured.graph, VARIANTS[variant], COST, peak_bytes - 1).peak_bytes < peak_bytes
    lower_bound_bytes = schedule.graph.lower_bound_bytes
    if variant in MAY_MOVE_WEIGHTS:
        with suppress(InfeasibleSchedule):
            less = plan(case.captured.graph, VARIANTS[variant], COST, lower_bound_bytes - 1)
            assert less.graph.external_bytes < schedule.graph.external_bytes
        # the refusal's bound is the tighter one; where times are close, the schedule is another method's, with weights
        # at home
        least_bytes, refused_bytes, most_bytes = 1, 1, peak_bytes
    else:
        least_bytes, refused_bytes = case.captured.graph.external_bytes, lower_bound_bytes - 1
        most_bytes = lower_bound_bytes
    with pytest.raises(InfeasibleSchedule) as refusal:
        plan(case.captured.graph, VARIANTS[variant], COST, refused_bytes)
    # less where the method would choose a form of the graph that needs less
    assert least_bytes < refusal.value.lower_bound_bytes <= most_bytes
    assert refusal.value.lower_bound_bytes <= refusal.value.needed_bytes <= peak_bytes


@pytest.mark.parametrize("variant", VARIANTS)
def test_schedules_are_deterministic_pickle_and_print(variant: str) -> None:
    schedule = planned("squeezenet", variant)
    assert plan(reference("squeezenet").captured.graph, VARIANTS[variant], COST, None) == schedule
    copy = pickle.loads(pickle.dumps(schedule))
    assert copy == schedule
    validate(copy)
    header = 1 + bool(schedule.reason) + bool(schedule.note) + bool(schedule.certificate)
    assert len(str(schedule).splitlines()) == header + len(schedule)


@pytest.mark.accelerator
def test_the_step_gives_its_memory_back() -> None:
    case = reference("squeezenet")
    with step_of(case, planned("squeezenet", "layrub_hybrid"), chaos=None) as step:
        peaks = [allocator_peak_bytes(lambda: check_exact(case, step)) for _ in range(3)]
    assert peaks[1] == peaks[2]
