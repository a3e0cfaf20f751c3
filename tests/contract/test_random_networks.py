"""Random networks under every strategy: exact results and peaks, whole and in micro-batches, with late copies."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from membench.backends.cpu import Chaos
from membench.capture.capture import Captures
from membench.conformance.results import Reference, run_step
from membench.conformance.steps import check_exact, check_peak
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Schedule
from membench.planning.memory.liveness import live_bytes
from membench.steps.plan import plan
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import (
    ALL_PLANS,
    FURTHER_OPERATIONS,
    LOSSES,
    OPERATIONS,
    Layers,
    random_reference,
    random_workload,
    runs_in_plain_pytorch,
)
from tests.helpers.planning.timings import highest_bytes
from tests.helpers.steps.checks import step_of
from tests.helpers.steps.micro_batches import accumulate, step_in_micro_batches
from tests.helpers.steps.variants import COMBINED, EACH_COMBINED

pytestmark = pytest.mark.accelerator

NETWORKS = 85
"""Random networks of the long run, each of which makes some 130 runs."""
BATCH_SIZE = 5
DELAYS_S = (0.0001, 0.0003, 0.001)
"""The longest delays of copies."""


@pytest.mark.parametrize("variant", EACH_COMBINED)
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layers=ALL_PLANS, seed=st.integers(0, 1000))
@example(layers=[("dropout", 0, 0), ("relu", 0, 0), ("transposed", 1, 0)], seed=0)  # permutes a gradient
def test_results_and_peak_of_random_networks_are_exact(variant: str, layers: Layers, seed: int) -> None:
    assume(runs_in_plain_pytorch(layers, seed))
    case = random_reference(layers, seed)
    schedule = plan(case.captured.graph, COMBINED[variant], COST, None)
    with step_of(case, schedule, Chaos(seed, longest_delay_s=0.0003)) as step:
        check_exact(case, step)
        check_peak(case, step)
    assert highest_bytes(schedule) == max(live_bytes(schedule)) == schedule.peak_bytes


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_random_networks_are_exact_in_budgets_and_micro_batches(seed: int) -> None:
    assert not differences(seed, Counter())


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_ten_thousand_runs_are_exact() -> None:
    counts: Counter[str] = Counter()
    found = [difference for seed in range(NETWORKS) for difference in differences(seed, counts)]
    assert not found, "\n".join(found)
    assert counts["runs"] >= 10_000, counts


def differences(seed: int, counts: Counter[str]) -> list[str]:
    """Run a random network under every strategy, with and without a budget, and return what is not exact."""
    rng = random.Random(seed)
    layers = [
        (rng.choice(OPERATIONS + FURTHER_OPERATIONS), rng.randrange(8), rng.randrange(8))
        for _ in range(rng.randint(2, 10))
    ]
    loss = rng.choice(sorted(LOSSES))
    if not runs_in_plain_pytorch(layers, seed):
        counts["refused by plain PyTorch"] += 1
        return []
    counts["networks"] += 1
    case = random_reference(layers, seed, loss)
    found = []
    for variant in COMBINED:
        for what, schedule in _schedules(case, variant, rng):
            name = f"seed {seed}, {variant}, {what}: {layers} {loss}"
            found += [f"{name}: {each}" for each in _differences_of(case, schedule, rng, counts)]
    return found + [f"seed {seed}, {each}: {layers} {loss}" for each in _in_micro_batches(layers, seed, loss, counts)]


def _schedules(case: Reference, variant: str, rng: random.Random) -> Iterator[tuple[str, Schedule]]:
    free = plan(case.captured.graph, COMBINED[variant], COST, None)
    yield "no budget", free
    lowest_bytes = free.graph.lower_bound_bytes
    budget_bytes = rng.randint(lowest_bytes, max(lowest_bytes, free.peak_bytes))
    with suppress(InfeasibleSchedule):
        yield f"budget {budget_bytes}", plan(case.captured.graph, COMBINED[variant], COST, budget_bytes)


def _differences_of(case: Reference, schedule: Schedule, rng: random.Random, counts: Counter[str]) -> Iterator[str]:
    for delay_s in DELAYS_S:
        with step_of(case, schedule, Chaos(rng.randrange(1000), delay_s)) as step:
            counts["runs"] += 1
            try:
                check_exact(case, step)
            except AssertionError as error:
                yield f"copies up to {delay_s} s late: {error}"
    with step_of(case, schedule, chaos=None) as step:
        counts["runs"] += 1
        try:
            check_peak(case, step)
        except AssertionError as error:
            yield f"peak: {error}"


def _in_micro_batches(layers: Layers, seed: int, loss: str, counts: Counter[str]) -> Iterator[str]:
    work = random_workload(layers, seed, loss, BATCH_SIZE)
    captures = Captures(work)
    buffers = {name: buffer.clone() for name, buffer in work.module.named_buffers()}
    micro_batch = 1 + seed % BATCH_SIZE
    if micro_batch == BATCH_SIZE:
        return
    expected = run_step(work, lambda: accumulate(work, micro_batch), buffers)
    draws = any(task.random for task in captures.graph_at(micro_batch).tasks)
    for variant, strategy in COMBINED.items():
        if strategy.layer_by_layer and draws:
            continue  # refused: see test_layer_by_layer.py
        with step_in_micro_batches(captures, strategy, micro_batch, Chaos(seed, DELAYS_S[0])) as step:
            for _ in DELAYS_S:
                counts["runs"] += 1
                results = run_step(work, lambda: step(work.inputs, work.targets), buffers)
                try:
                    expected.check(results, rounding=step.plan[0].schedule.rounding)
                except AssertionError as error:
                    yield f"{variant}, micro-batches of {micro_batch}: {error}"
