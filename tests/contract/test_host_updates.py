"""Mutants of schedules whose weights are updated on the host: what the validator accepts must give the same weights.

The judge is the CPU backend with late copies, late updates and poisoned freed memory.
"""

import random
from copy import deepcopy

import pytest

from membench.backends.cpu import Chaos, CpuBackend
from membench.capture.capture import capture
from membench.core.errors import InvalidSchedule
from membench.core.optimizer import Gradients
from membench.core.schedule import HOST_STREAM, Compute, Schedule
from membench.core.workload import Workload
from membench.execution.measurement import cpu_peak_bytes
from membench.planning.update import add_update
from membench.planning.validate import validate
from membench.steps.compiled_step import CompiledStep
from membench.steps.plan import plan
from membench.steps.update import RealUpdate
from tests.helpers.host_updates import HostUpdates
from tests.helpers.mutations import mutant
from tests.helpers.networks import COST, NETWORKS, workload
from tests.helpers.updates import MAKERS, first_difference, plain_steps, run_steps

NAME = "adamw"


def updated(work: Workload, schedule: Schedule | None, chaos: Chaos | None) -> tuple[CompiledStep, Schedule]:
    """Return a step under a schedule, or under the one that `HostUpdates` makes, and that schedule."""
    update = RealUpdate(MAKERS[NAME](work.module.parameters()), work.module, Gradients.FREED, COST)
    captured = capture(work)
    if schedule is None:
        schedule = plan(add_update(captured.graph, update), HostUpdates(), COST, None)
    else:
        update(captured.graph)
    backend = CpuBackend(schedule.graph, chaos=chaos)
    backend.tensors.update = update.of(schedule)
    return CompiledStep(work, captured, schedule, backend, update=update), schedule


@pytest.mark.parametrize("mutants", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_accepted_mutants_update_right(mutants: int) -> None:
    original = workload(NETWORKS["lstm_cnn"], "lstm_cnn")
    expected = plain_steps(original, MAKERS[NAME])
    step, schedule = updated(deepcopy(original), None, None)
    step.close()
    rng, accepted = random.Random(0), 0
    for _ in range(mutants):
        description, changed = mutant(schedule, rng)
        try:
            validate(changed)
        except InvalidSchedule:
            continue
        if changed == schedule:
            continue
        accepted += 1
        for chaos in (None, Chaos(rng.randrange(100), longest_delay_s=0.001)):
            work = deepcopy(original)
            step, _ = updated(work, changed, chaos)
            run_steps(work, step)
            assert not first_difference(work.module, expected), f"{description}\n{changed}"
            held_bytes = cpu_peak_bytes(lambda work=work, step=step: run_steps(work, step), step.backends)
            assert changed.graph.external_bytes + held_bytes == changed.peak_bytes, description
            step.close()
    assert accepted


def test_the_host_computes_beside_the_device() -> None:
    work = workload(NETWORKS["lstm_cnn"], "lstm_cnn")
    step, schedule = updated(work, None, None)
    on_host = [
        item for item in schedule.instructions if isinstance(item, Compute) and item.stream == HOST_STREAM
    ]
    assert len(on_host) == sum(task.on_host for task in schedule.graph.tasks) > 0
    run_steps(work, step)
    timeline = step.timeline()
    assert timeline.busy_s(HOST_STREAM) > 0
    step.close()
