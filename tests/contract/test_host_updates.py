"""Mutants of schedules whose weights are updated on the host: what the validator accepts must give the same weights.

The judge is the CPU backend with late copies, late updates and poisoned freed memory.
"""

import random
from copy import deepcopy

import pytest

from membench.backends.cpu import Chaos
from membench.core.schedule import HOST_STREAM, Compute
from membench.execution.measurement import cpu_peak_bytes
from tests.helpers.host_updates import HostUpdates
from tests.helpers.mutations import accepted_mutants
from tests.helpers.networks import NETWORKS, workload
from tests.helpers.updates import MAKERS, first_difference, plain_steps, run_steps, updating_step


@pytest.mark.parametrize("mutants", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_accepted_mutants_update_right(mutants: int) -> None:
    original = workload(NETWORKS["lstm_cnn"], "lstm_cnn")
    make = MAKERS["adamw"]
    expected = plain_steps(original, make)
    step = updating_step(original, make(original.module.parameters()), HostUpdates())
    schedule = step.schedule
    step.close()
    rng, accepted = random.Random(0), 0
    for description, changed in accepted_mutants(schedule, rng, mutants):
        accepted += 1
        for chaos in (None, Chaos(rng.randrange(100), longest_delay_s=0.001)):
            work = deepcopy(original)
            step = updating_step(work, make(work.module.parameters()), changed, chaos=chaos)
            run_steps(work, step)
            assert not first_difference(work.module, expected), f"{description}\n{changed}"
            held_bytes = cpu_peak_bytes(lambda work=work, step=step: run_steps(work, step), step.backends)
            assert changed.graph.external_bytes + held_bytes == changed.peak_bytes, description
            step.close()
    assert accepted


def test_the_host_computes_beside_the_device() -> None:
    work = workload(NETWORKS["lstm_cnn"], "lstm_cnn")
    step = updating_step(work, MAKERS["adamw"](work.module.parameters()), HostUpdates())
    schedule = step.schedule
    on_host = [
        item for item in schedule.instructions if isinstance(item, Compute) and item.stream == HOST_STREAM
    ]
    assert len(on_host) == sum(task.on_host for task in schedule.graph.tasks) > 0
    run_steps(work, step)
    timeline = step.timeline()
    assert timeline.busy_s(HOST_STREAM) > 0
    step.close()
