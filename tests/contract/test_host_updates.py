"""Updates on the host give the bits of plain PyTorch: with every optimizer, and under every mutant that the validator accepts.

The judge is the CPU backend with late copies, late updates and poisoned freed memory.
"""

import random
from copy import deepcopy

import pytest
import torch

from membench.backends.cpu import Chaos
from membench.core.schedule import HOST_STREAM, Compute
from membench.core.task_graph import Phase
from membench.execution.measurement import cpu_peak_bytes
from tests.helpers.disk import layers
from tests.helpers.host_updates import HostUpdates
from tests.helpers.mutations import accepted_mutants
from tests.helpers.networks import NETWORKS, workload
from tests.helpers.updates import (
    EVERY_OPTIMIZER,
    MAKERS,
    assert_same,
    first_difference,
    plain_steps,
    plain_training,
    run_steps,
    updating_step,
    values,
)


@pytest.mark.parametrize("name", EVERY_OPTIMIZER)
def test_every_optimizer_is_exact(name: str) -> None:
    original, make = layers(), EVERY_OPTIMIZER[name]
    work = deepcopy(original)
    optimizer = make(work.module.parameters())
    step = updating_step(work, optimizer, HostUpdates(), chaos=Chaos(seed=1, longest_delay_s=0.0005))
    updates = [task for task in step.schedule.graph.tasks if task.phase is Phase.UPDATE]
    assert all(task.on_host for task in updates)
    assert (len(updates) > 1) is (name != "Adafactor")  # which reads numbers of the device
    for seed, (loss, module, expected) in enumerate(plain_training(original, make)):
        torch.manual_seed(seed)
        assert torch.equal(step(work.inputs, work.targets), loss)
        assert_same(values(work.module, optimizer), values(module, expected))
    step.close()


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
