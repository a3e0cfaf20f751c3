"""Schedules within a limit of host memory: legal, within it, and to the same bits on a real disk."""

import random
from pathlib import Path

import pytest

from membench.backends.cpu import Chaos
from membench.core.errors import InfeasibleSchedule
from membench.core.schedule import Drop, Load, Store
from membench.planning.validate import validate
from membench.steps.plan import plan
from tests.helpers.disk import Visits, host_peak_bytes, prepared, run_once, within
from tests.helpers.networks import COST
from tests.helpers.random_networks import OPERATIONS, random_reference, runs_in_plain_pytorch


def least_bytes(schedule) -> int:
    try:
        within(schedule, 1)
    except InfeasibleSchedule as error:
        assert error.on_host
        return error.needed_bytes
    return 1


@pytest.mark.parametrize("seed", range(8))
def test_random(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.planning.disk.LEAST_BYTES", 1)
    rng = random.Random(seed)
    while True:
        layers = [
            (rng.choice(OPERATIONS), rng.randrange(8), rng.randrange(8)) for _ in range(rng.randint(2, 7))
        ]
        if runs_in_plain_pytorch(layers, seed):
            break
    case = random_reference(layers, seed)
    free = plan(case.captured.graph, Visits(rng), COST, None)
    least, most = least_bytes(free), host_peak_bytes(free)
    for share in (0.0, 0.1, 0.5, 0.9):
        limit = int(least + share * (most - least))
        schedule = within(free, limit)
        validate(schedule, host_memory_bytes=limit)
        kinds = [sum(isinstance(i, k) for i in schedule.instructions) for k in (Load, Store, Drop)]
        print(seed, least, most, limit, host_peak_bytes(schedule), kinds, len(free), len(schedule))
        for chaos in (None, Chaos(seed, 0.001)):
            with prepared(case, schedule, tmp_path, chaos) as (backend, program, tensors):
                for _ in range(2):
                    case.results.check(run_once(case, backend, program, tensors), rounding=0.0)
