"""Mutants of every strategy's schedules: what the validator accepts must compute the same bits in the stated memory.

The judge is the CPU backend with late copies and poisoned freed memory; of the stated peak, all timings in turn. Over
one process a mean changes nothing, so a gradient that is averaged never or twice is found by counting.
"""

import random
from collections import Counter
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from membench.backends.cpu import Chaos
from membench.conformance.results import Reference
from membench.conformance.steps import check_exact, check_peak
from membench.core.graph.schedule import AllReduce, Schedule
from membench.planning.parallel.exchange import Exchange, exchange_gradients
from membench.steps.plan import plan
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import random_reference
from tests.helpers.planning.mutations import accepted_mutants
from tests.helpers.planning.timings import highest_bytes
from tests.helpers.steps.checks import step_of
from tests.helpers.steps.variants import COMBINED, EACH_COMBINED

pytestmark = pytest.mark.accelerator

NETWORKS = (
    [("convolution", 0, 0), ("normalized", 1, 1), ("dropout", 2, 2), ("add in place", 3, 1), ("dropout", 4, 0)],
    [("relu", 0, 0), ("shared", 1, 1), ("concatenate", 2, 0), ("pool", 3, 3), ("dropout", 4, 4), ("add", 5, 4)],
    [("normalized", 0, 0), ("slices", 1, 0), ("add in place", 2, 1), ("shared", 3, 3), ("relu", 4, 4)],
)
"""With blocks written in place, shared weights and several dropouts."""


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("variant", EACH_COMBINED)
@pytest.mark.parametrize("mutants", [40, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_accepted_mutants_are_right(variant: str, mutants: int) -> None:
    rng = random.Random(f"{variant} {mutants}")
    cases = [random_reference(list(layers), seed=0) for layers in NETWORKS]
    planned = [plan(case.captured.graph, COMBINED[variant], COST, None) for case in cases]
    for number in range(mutants):
        case, schedule = cases[number % len(cases)], planned[number % len(cases)]
        exchanges = number % 4 == 3
        if exchanges:
            schedule = exchange_gradients(schedule, rng.choice(list(Exchange)))
        for description, changed in accepted_mutants(schedule, rng, 1, exchanges=exchanges):
            check_right(case, changed, exchanges=exchanges, description=description)


def check_right(case: Reference, schedule: Schedule, *, exchanges: bool, description: str) -> None:
    try:
        if exchanges:
            averaged = Counter(i.block for i in schedule.instructions if isinstance(i, AllReduce))
            assert averaged == Counter(value.block for _, value in schedule.graph.gradients if value)
        with step_of(case, schedule, chaos=None) as step:
            check_exact(case, step)
            check_peak(case, step)
        assert highest_bytes(schedule) == schedule.peak_bytes
        for seed in range(3):
            with step_of(case, schedule, Chaos(seed, longest_delay_s=0.001)) as step:
                check_exact(case, step)
                check_peak(case, step)
    except Exception as error:
        raise AssertionError(f"accepted and wrong: {description}\n{schedule}") from error
