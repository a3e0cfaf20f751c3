"""Updates on the host give plain PyTorch's bits, for every optimizer, random schedules and mutants.

The judge is the CPU backend with late copies, late updates and poisoned freed memory.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path

import pytest
import torch

from membench.backends.cpu import Chaos
from membench.conformance.networks import workload_of
from membench.conformance.results import Reference
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import HOST_STREAM, Compute, Schedule
from membench.core.graph.task_graph import Phase, Role, TaskGraph
from membench.core.step.optimizer import Gradients
from membench.planning.checking.validate import validate
from membench.planning.rewrites.deferred import deferred_updates
from membench.planning.rewrites.update import add_update
from membench.steps.plan import plan
from membench.steps.real.real_update import RealUpdate
from membench.strategies.superoffload import SuperOffload
from tests.helpers.devices import DEVICE, allocator_peak_bytes
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import random_layers, random_reference
from tests.helpers.planning.mutations import accepted_mutants
from tests.helpers.steps.disk import host_peak_bytes, layers, least_host_bytes, within
from tests.helpers.steps.host_updates import HostUpdates, RandomUpdates
from tests.helpers.steps.random_methods import random_method
from tests.helpers.steps.updates import (
    EVERY_OPTIMIZER,
    MAKERS,
    OPTIMIZERS,
    STEPS,
    assert_close,
    assert_same,
    first_difference,
    plain_steps,
    plain_training,
    run_steps,
    updating_step,
    values,
)

pytestmark = pytest.mark.accelerator

STATES = (Role.OPTIMIZER_STATE, Role.PENDING_GRADIENT)
"""What a real step keeps on a disk."""
SCHEDULES_OF_ONE = 5
"""Random schedules of one network and optimizer."""


@pytest.mark.parametrize("name", EVERY_OPTIMIZER)
def test_every_optimizer_is_exact(name: str) -> None:
    original, make = layers(), EVERY_OPTIMIZER[name]
    work = deepcopy(original)
    optimizer = make(work.module.parameters())
    step = updating_step(work, optimizer, HostUpdates(), chaos=Chaos(seed=1, longest_delay_s=0.0005))
    updates = [task for task in step.schedule.graph.tasks if task.phase is Phase.UPDATE]
    assert all(task.on_host for task in updates)
    reads_numbers = {"Adafactor"} if DEVICE.type == "cpu" else {"Adafactor", "ASGD"}  # of the device
    assert (len(updates) > 1) is (name not in reads_numbers)
    for seed, (loss, module, expected) in enumerate(plain_training(original, make, on_host=True)):
        torch.manual_seed(seed)
        assert torch.equal(step(work.inputs, work.targets), loss)
        assert_same(values(work.module, optimizer), values(module, expected))
    step.close()


def random_updates(graph: TaskGraph, rng: random.Random) -> Schedule:
    """Return a schedule whose updates and copies are at random times."""
    return plan(graph, RandomUpdates(rng), COST, None)


def by_random_method(graph: TaskGraph, rng: random.Random) -> Schedule:
    """Return the schedule of a method with random options; one that refuses the graph is not it."""
    while True:
        with suppress(UnsupportedStrategy):  # the update is one alone, or the network draws random numbers
            return plan(graph, random_method(rng), COST, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_schedule", "count"),
    [
        (random_updates, 10),
        (by_random_method, 10),
        pytest.param(random_updates, 1000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)]),
        pytest.param(by_random_method, 2000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(7200)]),
    ],
)
def test_random_schedules_are_exact(
    make_schedule: Callable[[TaskGraph, random.Random], Schedule],
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("membench.planning.host_memory.disk.LEAST_BYTES", 1)
    for seed in range(count // SCHEDULES_OF_ONE):
        rng = random.Random(seed)
        case = random_reference(random_layers(rng, seed), seed)
        name = rng.choice(sorted(OPTIMIZERS))
        make = partial(OPTIMIZERS[name], foreach=False)  # the same bits on the host and on an emulated GPU
        update = RealUpdate(make(case.work.module.parameters()), case.work.module, Gradients.FREED, COST)
        graph = add_update(case.captured.graph, update)
        for number in range(SCHEDULES_OF_ONE):
            schedule = within_random_limit(make_schedule(graph, rng), rng)
            on_host = any(task.on_host for task in schedule.graph.tasks)
            assert on_host or schedule.strategy == SuperOffload.name  # whose share of the host may be none
            chaos = Chaos(rng.randrange(100), longest_delay_s=rng.choice([0.0001, 0.0003, 0.001]))
            try:
                check_right(case, make, schedule, chaos, tmp_path)
            except Exception as error:
                raise AssertionError(f"seed {seed}, {name}, schedule {number}:\n{schedule}") from error


def within_random_limit(free: Schedule, rng: random.Random) -> Schedule:
    """Return a schedule, about every other one within a random limit of host memory."""
    if rng.random() < 0.5:
        return free
    least_bytes, most_bytes = least_host_bytes(free, STATES), host_peak_bytes(free)
    limit_bytes = rng.randint(least_bytes, max(least_bytes, most_bytes))
    schedule = within(free, limit_bytes, STATES)
    validate(schedule, host_memory_bytes=limit_bytes)
    return schedule


def is_pending(schedule: Schedule, seed: int) -> bool:
    """Return whether updates of a step that is not the last are deferred to the next one."""
    return bool(deferred_updates(schedule.graph)) and seed + 1 < STEPS


def check_right(
    case: Reference, make: Callable[..., torch.optim.Optimizer], schedule: Schedule, chaos: Chaos, folder: Path
) -> None:
    """Check losses, weights, buffers and states after each step, and the stated peak."""
    work = deepcopy(case.work)
    optimizer = make(work.module.parameters())
    step = updating_step(work, optimizer, schedule, captured=case.captured, chaos=chaos, disk_folder=folder)
    for seed, (loss, module, expected) in enumerate(plain_training(case.work, make, on_host=True)):
        torch.manual_seed(seed)
        found = step(work.inputs, work.targets)
        if DEVICE.type == "cuda":
            torch.testing.assert_close(found, loss)
            if is_pending(schedule, seed):
                continue
            assert_close(values(work.module, optimizer), values(module, expected))
            continue
        assert torch.equal(found, loss)
        if is_pending(schedule, seed):
            continue
        assert_same(values(work.module, optimizer), values(module, expected))
        assert not first_difference(work.module, module)
    held_bytes = allocator_peak_bytes(lambda: run_steps(work, step), step.backends)
    assert schedule.graph.external_bytes + held_bytes == schedule.peak_bytes
    step.close()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.6])
@pytest.mark.parametrize("mutants", [60, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_accepted_mutants_update_right(mutants: int, share: float) -> None:
    original = workload_of("lstm_cnn", DEVICE)
    make = MAKERS["adamw"]
    expected = plain_steps(original, make, on_host=True)
    first = deepcopy(original)
    step = updating_step(first, make(first.module.parameters()), HostUpdates(deferred_share=share))
    schedule = step.schedule
    step.close()
    rng, accepted = random.Random(0), 0
    for description, changed in accepted_mutants(schedule, rng, mutants):
        accepted += 1
        for chaos in (None, Chaos(rng.randrange(100), longest_delay_s=0.001)):
            work = deepcopy(original)
            step = updating_step(work, make(work.module.parameters()), changed, chaos=chaos)
            run_steps(work, step)
            step.restore()
            assert not first_difference(work.module, expected), f"{description}\n{changed}"
            held_bytes = allocator_peak_bytes(lambda work=work, step=step: run_steps(work, step), step.backends)
            assert changed.graph.external_bytes + held_bytes == changed.peak_bytes, description
            step.close()
    assert accepted


def test_the_host_computes_beside_the_device() -> None:
    work = workload_of("lstm_cnn", DEVICE)
    step = updating_step(work, MAKERS["adamw"](work.module.parameters()), HostUpdates())
    schedule = step.schedule
    on_host = [item for item in schedule.instructions if isinstance(item, Compute) and item.stream == HOST_STREAM]
    assert len(on_host) == sum(task.on_host for task in schedule.graph.tasks) > 0
    run_steps(work, step)
    timeline = step.timeline()
    assert timeline.busy_s(HOST_STREAM) > 0
    step.close()
