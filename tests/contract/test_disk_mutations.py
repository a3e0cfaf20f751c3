"""Mutants of schedules that use the disk: what the validator accepts must compute the same bits within the limit.

The judge is the CPU backend with a real file, late copies, and poisoned freed memory and buffers.
"""

import random
from copy import copy, deepcopy
from pathlib import Path

import pytest

from membench.backends.cpu import Chaos
from membench.capture.capture import Captures
from membench.conformance.results import Reference
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Schedule
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.workload import Workload
from membench.planning.rewrites.update import updated_workload
from membench.steps.compile import build_step
from membench.steps.plan import plan
from membench.steps.request import StepRequest
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import random_reference
from tests.helpers.planning.mutations import accepted_mutants
from tests.helpers.steps.disk import Visits, host_peak_bytes, layers, least_host_bytes, prepared, run_once, within
from tests.helpers.steps.host_updates import HostUpdates
from tests.helpers.steps.updates import MAKERS, first_difference, plain_steps, run_steps, updating_step

pytestmark = pytest.mark.accelerator
NETWORK = [("convolution", 0, 0), ("normalized", 1, 1), ("dropout", 2, 2), ("add in place", 3, 1)]
MUTANTS_OF_ONE = 25
"""How many mutants are made of one schedule."""


@pytest.fixture(autouse=True)
def small_blocks_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.planning.host_memory.disk.LEAST_BYTES", 1)


@pytest.mark.slow
@pytest.mark.parametrize("mutants", [100, pytest.param(3000, marks=pytest.mark.exhaustive)])
def test_accepted_mutants_are_right(mutants: int, tmp_path: Path) -> None:
    rng, accepted = random.Random(mutants), 0
    case = random_reference(NETWORK, seed=0)
    for _ in range(mutants // MUTANTS_OF_ONE):
        free = plan(case.captured.graph, Visits(rng), COST, None)
        least_bytes, most_bytes = least_host_bytes(free), host_peak_bytes(free)
        limit_bytes = rng.randint(least_bytes, (least_bytes + most_bytes) // 2)
        schedule = within(free, limit_bytes)
        found = accepted_mutants(schedule, rng, MUTANTS_OF_ONE, host_memory_bytes=limit_bytes)
        for description, changed in found:
            accepted += 1
            assert host_peak_bytes(changed) <= limit_bytes
            check_right(case, changed, tmp_path, rng.randrange(100), description)
    assert accepted


def check_right(case: Reference, schedule: Schedule, folder: Path, seed: int, description: str) -> None:
    for chaos in (None, Chaos(seed, longest_delay_s=0.001)):
        with prepared(case, schedule, folder, chaos) as (backend, program, tensors):
            for _ in range(2):
                found = case.results.difference(run_once(case, backend, program, tensors))
                assert not found, f"{description}: {found}\n{schedule}"


@pytest.mark.parametrize("mutants", [25, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_accepted_mutants_update_right(mutants: int, tmp_path: Path) -> None:
    original = layers()
    expected = plain_steps(original, MAKERS["adamw"], on_host=True)
    schedule, limit_bytes = schedule_on_disk(original, tmp_path)
    rng, accepted = random.Random(mutants), 0
    for description, changed in accepted_mutants(schedule, rng, mutants, host_memory_bytes=limit_bytes):
        accepted += 1
        for chaos in (None, Chaos(rng.randrange(100), longest_delay_s=0.001)):
            work = deepcopy(original)
            optimizer = MAKERS["adamw"](work.module.parameters())
            step = updating_step(work, optimizer, changed, chaos=chaos, disk_folder=tmp_path)
            run_steps(work, step)
            assert not first_difference(work.module, expected), f"{description}\n{changed}"
            step.close()
    assert accepted


def schedule_on_disk(work: Workload, folder: Path) -> tuple[Schedule, int]:
    """Return a schedule that updates on the host, with states on the disk, and its limit of host memory."""
    work = deepcopy(work)
    cost, by = copy(COST), WeightUpdate(MAKERS["adamw"](work.module.parameters()))
    captures, cost.disk_folder, cost.host_memory_bytes = Captures(updated_workload(work, by)), folder, 1
    with pytest.raises(InfeasibleSchedule) as found:
        build_step(captures, cost, StepRequest(HostUpdates(), optimizer=by))
    limit_bytes = cost.host_memory_bytes = found.value.needed_bytes + 200
    step = build_step(captures, cost, StepRequest(HostUpdates(), optimizer=by))
    step.close()
    return step.plan[0].schedule, limit_bytes
