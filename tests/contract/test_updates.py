"""Every strategy with the update in the step: the weights of plain PyTorch's loop, in the stated memory."""

from copy import deepcopy
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from membench.backends.cpu import Chaos
from membench.capture.capture import CapturedStep, Captures, capture
from membench.conformance.networks import workload_of
from membench.conformance.steps import has_parallel_tasks
from membench.core.graph.task_graph import Phase
from membench.core.step.optimizer import Gradients, WeightUpdate
from membench.core.step.workload import Workload
from membench.planning.rewrites.update import updated_workload
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import strategies
from tests.helpers.devices import DEVICE, allocator_peak_bytes
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import PLANS, Layers, random_workload, runs_in_plain_pytorch
from tests.helpers.steps.updates import MAKERS, first_difference, plain_steps, run_steps, updating_step
from tests.helpers.steps.variants import COMBINED, EACH_COMBINED, STRATEGIES_ONE_AFTER_ANOTHER

pytestmark = pytest.mark.accelerator


def weights_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().cpu().flatten() for weight in module.parameters()])


def check_update(original: Workload, captured: CapturedStep, variant: str, name: str, chaos: Chaos | None) -> None:
    work = deepcopy(original)
    optimizer = MAKERS[name](work.module.parameters())
    step = updating_step(work, optimizer, COMBINED[variant], captured=captured, chaos=chaos)
    schedule = step.schedule
    run_steps(work, step)
    on_host = any(task.on_host for task in schedule.graph.tasks)
    expected = plain_steps(original, MAKERS[name], on_host=on_host)
    if schedule.rounding:
        before, after, ours = (weights_of(module) for module in (original.module, expected, work.module))
        assert (ours - after).norm() <= 0.1 * (after - before).norm()
    else:
        assert not first_difference(work.module, expected)
    assert all(weight.grad is None for weight in work.module.parameters())
    held_bytes = schedule.graph.external_bytes + allocator_peak_bytes(lambda: run_steps(work, step), step.backends)
    if has_parallel_tasks(schedule):
        assert held_bytes <= schedule.peak_bytes
    else:
        assert held_bytes == schedule.peak_bytes
    step.close()


@cache
def captured_network(name: str) -> tuple[Workload, CapturedStep]:
    work = workload_of(name, DEVICE)
    return work, capture(work)


@pytest.mark.parametrize("variant", EACH_COMBINED)
@pytest.mark.parametrize(
    ("network", "name"), [pytest.param("squeezenet", "sgd", marks=pytest.mark.exhaustive), ("lstm", "adamw")]
)
def test_weights_and_peak_are_exact(variant: str, network: str, name: str) -> None:
    for chaos in (None, Chaos(seed=3, longest_delay_s=0.0005)):
        check_update(*captured_network(network), variant, name, chaos)


@pytest.mark.slow
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(layers=PLANS, name=st.sampled_from(sorted(MAKERS)))
def test_random_networks_are_updated_exactly(layers: Layers, name: str) -> None:
    if not runs_in_plain_pytorch(layers, 0):
        return
    work = random_workload(layers)
    captured = capture(work)
    for variant in COMBINED:
        if not variant.startswith("epmc"):  # it rounds, and few weights have few gradients to average over
            check_update(work, captured, variant, name, Chaos(seed=5))


@pytest.mark.parametrize("strategy", STRATEGIES_ONE_AFTER_ANOTHER)
def test_micro_batches_update_once_with_the_sum_of_their_gradients(strategy: str) -> None:
    work = workload_of("lstm_cnn", DEVICE, batch_size=5)
    without = deepcopy(work)
    make = MAKERS["adamw"]
    step = build_step(
        Captures(work),
        COST,
        StepRequest(strategies()[strategy](), micro_batch=2, optimizer=WeightUpdate(make(work.module.parameters()))),
    )
    gradients = build_step(Captures(without), COST, StepRequest(strategies()[strategy](), micro_batch=2))
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


@pytest.mark.filterwarnings("error:Detected call of:UserWarning")  # of a schedule that knows of no step
@pytest.mark.parametrize(
    ("strategy", "micro_batch", "gradients"),
    [("eager", None, "freed"), ("vdnn_all", None, "freed"), ("eager", 2, "freed"), ("eager", 2, "kept")],
)
def test_parts_have_the_options_that_groups_have_now(strategy: str, micro_batch: int | None, gradients: str) -> None:
    work = workload_of("lstm_cnn", DEVICE, batch_size=4)
    twin = deepcopy(work)

    def made(module: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        weights = list(module.parameters())
        groups = [{"params": weights[::3], "weight_decay": 0.1}, {"params": weights[1::3] + weights[2::3]}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    (ours, our_rates), (theirs, their_rates) = made(work.module), made(twin.module)
    by = WeightUpdate(ours, gradients=Gradients(gradients))
    step = build_step(
        Captures(updated_workload(work, by)),
        COST,
        StepRequest(strategies()[strategy](), micro_batch=micro_batch, optimizer=by),
    )
    graph = step.plan[-1].schedule.graph
    assert sum(task.phase is Phase.UPDATE for task in graph.tasks) > 1
    assert twin.loss is not None
    count = 1 if micro_batch is None else work.batch_size // micro_batch
    size = work.batch_size // count
    for seed in range(3):
        torch.manual_seed(seed)
        step(work.inputs, work.targets)
        our_rates.step()
        torch.manual_seed(seed)
        theirs.zero_grad(set_to_none=gradients == "freed")
        for start in range(0, work.batch_size, size):
            inputs, targets = (twin.samples(each, start, start + size) for each in (twin.inputs, twin.targets))
            (twin.loss(twin.module(*inputs), *targets) / count).backward()
        theirs.step()
        their_rates.step()
    assert not first_difference(work.module, twin.module)
    states, expected = ours.state_dict()["state"], theirs.state_dict()["state"]
    for number, state in states.items():
        assert all(torch.equal(value, expected[number][key]) for key, value in state.items())
    assert all((weight.grad is None) is (gradients == "freed") for weight in work.module.parameters())
    step.close()
