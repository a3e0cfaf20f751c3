"""Mutants of schedules that use the disk: what the validator accepts must compute the same bits within the limit.

The judge is the CPU backend with a real file, late copies, and poisoned freed memory and buffers.
"""

import random
from pathlib import Path

import pytest

from membench.backends.cpu import Chaos
from membench.core.errors import InvalidSchedule
from membench.planning.validate import validate
from membench.steps.plan import plan
from tests.helpers.disk import Visits, host_peak_bytes, least_host_bytes, prepared, run_once, within
from tests.helpers.mutations import mutant
from tests.helpers.networks import COST
from tests.helpers.random_networks import random_reference

NETWORK = [("convolution", 0, 0), ("normalized", 1, 1), ("dropout", 2, 2), ("add in place", 3, 1)]


@pytest.fixture(autouse=True)
def small_blocks_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.planning.disk.LEAST_BYTES", 1)


@pytest.mark.parametrize("mutants", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_accepted_mutants_are_right(mutants: int, tmp_path: Path) -> None:
    rng, accepted = random.Random(mutants), 0
    case = random_reference(NETWORK, seed=0)
    for number in range(mutants):
        if number % 25 == 0:
            free = plan(case.captured.graph, Visits(rng), COST, None)
            least_bytes, most_bytes = least_host_bytes(free), host_peak_bytes(free)
            limit_bytes = rng.randint(least_bytes, (least_bytes + most_bytes) // 2)
            schedule = within(free, limit_bytes)
        description, changed = mutant(schedule, rng)
        try:
            validate(changed, host_memory_bytes=limit_bytes)
        except InvalidSchedule:
            continue
        if changed == schedule:
            continue
        accepted += 1
        assert host_peak_bytes(changed) <= limit_bytes
        for chaos in (None, Chaos(rng.randrange(100), longest_delay_s=0.001)):
            with prepared(case, changed, tmp_path, chaos) as (backend, program, tensors):
                for _ in range(2):
                    found = case.results.difference(run_once(case, backend, program, tensors))
                    assert not found, f"{description}: {found}\n{changed}"
    assert accepted
