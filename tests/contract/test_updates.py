"""Every strategy with the update in the step: the weights of plain PyTorch's loop, bit for bit, in the stated memory."""

from copy import deepcopy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from membench.backends.cpu import Chaos, CpuBackend
from membench.capture.capture import Captures, capture
from membench.core.optimizer import Gradients, WeightUpdate
from membench.core.workload import Workload
from membench.execution.measurement import cpu_peak_bytes
from membench.planning.update import add_update
from membench.steps.compile import build_step
from membench.steps.compiled_step import CompiledStep
from membench.steps.plan import plan
from membench.steps.update import RealUpdate
from membench.strategies.base import strategies
from tests.helpers.networks import COST, NETWORKS, workload
from tests.helpers.random_networks import PLANS, Layers, random_workload, runs_in_plain_pytorch
from tests.helpers.timings import has_parallel_tasks
from tests.helpers.updates import MAKERS, first_difference, plain_steps, run_steps
from tests.helpers.variants import VARIANTS


def weights_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


def check_update(original: Workload, variant: str, name: str, chaos: Chaos | None) -> None:
    work = deepcopy(original)
    update = RealUpdate(MAKERS[name](work.module.parameters()), work.module, Gradients.FREED, COST)
    captured = capture(work)
    schedule = plan(add_update(captured.graph, update), VARIANTS[variant], COST, None)
    backend = CpuBackend(schedule.graph, chaos=chaos)
    backend.tensors.update = update.of(schedule)
    step = CompiledStep(work, captured, schedule, backend, update=update)
    run_steps(work, step)
    expected = plain_steps(original, MAKERS[name])
    if schedule.rounding:
        before, after, ours = (weights_of(module) for module in (original.module, expected, work.module))
        assert (ours - after).norm() <= 0.1 * (after - before).norm()
    else:
        assert not first_difference(work.module, expected)
    assert all(weight.grad is None for weight in work.module.parameters())
    held_bytes = schedule.graph.external_bytes + cpu_peak_bytes(lambda: run_steps(work, step), step.backends)
    if has_parallel_tasks(schedule):
        assert held_bytes <= schedule.peak_bytes
    else:
        assert held_bytes == schedule.peak_bytes
    step.close()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("network", "name"), [("squeezenet", "sgd"), ("lstm", "adamw")])
def test_weights_and_peak_are_exact(variant: str, network: str, name: str) -> None:
    work = workload(NETWORKS[network], network)
    check_update(work, variant, name, None)
    check_update(work, variant, name, Chaos(seed=3, longest_delay_s=0.0005))


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(layers=PLANS, name=st.sampled_from(sorted(MAKERS)))
def test_random_networks_are_updated_exactly(layers: Layers, name: str) -> None:
    if not runs_in_plain_pytorch(layers, 0):
        return
    work = random_workload(layers)
    for variant in VARIANTS:
        if not variant.startswith("epmc"):  # it rounds, and few weights have few gradients to average over
            check_update(work, variant, name, Chaos(seed=5))


@pytest.mark.parametrize("strategy", sorted(strategies()))
def test_micro_batches_update_once_with_the_sum_of_their_gradients(strategy: str) -> None:
    work = workload(NETWORKS["lstm_cnn"], "lstm_cnn", batch_size=5)
    without = deepcopy(work)
    make = MAKERS["adamw"]
    step = build_step(
        Captures(work),
        strategies()[strategy](),
        COST,
        None,
        micro_batch=2,
        optimizer=WeightUpdate(make(work.module.parameters())),
    )
    gradients = build_step(Captures(without), strategies()[strategy](), COST, None, micro_batch=2)
    optimizer = make(without.module.parameters())
    for seed in range(2):
        torch.manual_seed(seed)
        step(work.inputs, work.targets)
        torch.manual_seed(seed)
        gradients(without.inputs, without.targets)
        optimizer.step()
        optimizer.zero_grad()
    assert not first_difference(work.module, without.module)
    assert step.measure().peak_bytes == step.predicted_peak_bytes
    step.close()
    gradients.close()
