"""Every strategy in micro-batches: PyTorch's gradient accumulation to the bit, and its predicted peak."""

from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from membench.backends.cpu import Chaos
from membench.backends.real import products_in
from membench.capture.capture import Captures
from membench.conformance.networks import workload_of
from membench.conformance.results import Results, run_step
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.precision import Precision
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.step.workload import Workload
from membench.execution.measurement import Throughput
from membench.steps.compile import build_step
from membench.steps.real.micro_batched_step import MicroBatchedStep
from membench.steps.request import StepRequest
from membench.strategies.base import strategies
from membench.strategies.eager import Eager
from membench.strategies.vdnn import VdnnAll
from tests.helpers.devices import DEVICE, allocator_peak_bytes
from tests.helpers.networks.contract import COST
from tests.helpers.steps.micro_batches import accumulate, step_in_micro_batches
from tests.helpers.steps.variants import COMBINED, COMBINED_STRATEGIES, ONE_AFTER_ANOTHER, STRATEGIES_ONE_AFTER_ANOTHER

pytestmark = pytest.mark.accelerator

BATCH_SIZE = 5
MICRO_BATCH = 2  # twice, and once the sample that is left over


@cache
def accumulated(network: str, batch_size: int, micro_batch: int) -> tuple[Captures, dict[str, Tensor], Results]:
    """Return a network with its buffers before a step, and what plain PyTorch computes."""
    work = workload_of(network, DEVICE, batch_size)
    buffers = {name: buffer.clone() for name, buffer in work.module.named_buffers()}
    results = run_step(work, lambda: accumulate(work, micro_batch), buffers)
    return Captures(work), buffers, results


@pytest.mark.parametrize("strategy", STRATEGIES_ONE_AFTER_ANOTHER)
@pytest.mark.parametrize("network", ["squeezenet", pytest.param("resnet18", marks=pytest.mark.exhaustive)])
def test_micro_batches_accumulate_as_pytorch_does(network: str, strategy: str) -> None:
    captures, buffers, expected = accumulated(network, BATCH_SIZE, MICRO_BATCH)
    work = captures.workload
    step = build_step(captures, COST, StepRequest(strategies()[strategy](), micro_batch=MICRO_BATCH))
    assert isinstance(step, MicroBatchedStep)
    assert [(part.schedule.graph.batch_size, part.count) for part in step.plan] == [(2, 2), (1, 1)]
    results = run_step(work, lambda: step(work.inputs, work.targets), buffers)
    expected.check(results, rounding=step.plan[0].schedule.rounding)
    measured = step.measure(samples=Throughput(BATCH_SIZE, 1, (1.0,)))
    assert measured.peak_bytes == step.predicted_peak_bytes
    assert all(weight.grad is None for weight in work.module.parameters())
    step.close()


@pytest.mark.parametrize("variant", ONE_AFTER_ANOTHER)
@pytest.mark.parametrize(
    ("network", "batch_size", "micro_batch"),
    [
        pytest.param("densenet", 4, 2, marks=pytest.mark.exhaustive),
        pytest.param("googlenet", 4, 3, marks=pytest.mark.exhaustive),
        ("lstm_cnn", 4, 2),
        pytest.param("mobilenet_v2", 6, 2, marks=pytest.mark.exhaustive),
        pytest.param("resnet50", 5, 3, marks=pytest.mark.exhaustive),
        pytest.param("vit", 3, 2, marks=pytest.mark.exhaustive),
    ],
)
def test_micro_batches_are_exact_even_when_copies_are_late_and_freed_memory_is_poisoned(
    network: str, batch_size: int, micro_batch: int, variant: str
) -> None:
    captures, buffers, expected = accumulated(network, batch_size, micro_batch)
    work = captures.workload
    chaos = Chaos(seed=5, longest_delay_s=0.0003)
    with step_in_micro_batches(captures, COMBINED[variant], micro_batch, chaos) as step:
        results = run_step(work, lambda: step(work.inputs, work.targets), buffers)
        expected.check(results, rounding=step.plan[0].schedule.rounding)


def six_convolutions(batch_size: int) -> Captures:
    captures = _six_convolutions(batch_size)
    captures.workload.module.to(DEVICE)  # the step of another test may have left weights in host memory
    return captures


@cache
def _six_convolutions(batch_size: int) -> Captures:
    layers = [nn.Conv2d(channels, 8, 3, padding=1) for channels in (3, 8, 8, 8, 8, 8)]
    stages = [part for layer in layers for part in (layer, nn.ReLU())]
    module = nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    arguments = ((torch.randn(batch_size, 3, 32, 32).to(DEVICE),), (torch.randint(5, (batch_size,)).to(DEVICE),))
    return Captures(Workload("six", module.to(DEVICE), nn.functional.cross_entropy, *arguments))


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    strategy=st.sampled_from(sorted(COMBINED_STRATEGIES)),
    batch_size=st.integers(2, 9),
    micro_batch=st.integers(1, 8),
    percent=st.sampled_from([None, 60, 90]),
)
def test_a_smaller_last_micro_batch_keeps_the_predicted_peak_and_the_budget(
    strategy: str, batch_size: int, micro_batch: int, percent: int | None
) -> None:
    captures, micro_batch = six_convolutions(batch_size), min(micro_batch, batch_size - 1)
    budget_bytes = None
    if percent:
        eager = build_step(captures, COST, StepRequest(strategies()["eager"](), micro_batch=micro_batch))
        budget_bytes = eager.predicted_peak_bytes * percent // 100
        eager.close()
    try:
        step = build_step(captures, COST, StepRequest(strategies()[strategy](), budget_bytes, micro_batch=micro_batch))
    except InfeasibleSchedule:
        return
    measured = step.measure(samples=Throughput(batch_size, 1, (1.0,)))
    step.close()
    assert measured.peak_bytes == step.predicted_peak_bytes == max(run.schedule.peak_bytes for run in step.plan)
    assert budget_bytes is None or measured.peak_bytes <= budget_bytes


class OffloadsOnlyFive(VdnnAll):
    """Offloads in micro-batches of five samples; the plan of four holds more."""

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        strategy = super() if graph.batch_size == 5 else Eager()
        return strategy.schedule(graph, cost, budget_bytes)


def test_a_last_micro_batch_that_holds_the_most_is_measured_with_its_own_samples() -> None:
    step = build_step(six_convolutions(9), COST, StepRequest(OffloadsOnlyFive(), micro_batch=5))
    first, last = step.plan
    assert last.schedule.peak_bytes > first.schedule.peak_bytes
    measured = step.measure(samples=Throughput(9, 1, (1.0,)))
    step.close()
    assert measured.peak_bytes == step.predicted_peak_bytes == last.schedule.peak_bytes


@pytest.mark.slow
def test_without_batch_norm_micro_batches_give_the_gradients_of_the_whole_batch() -> None:
    work = workload_of("squeezenet", DEVICE, BATCH_SIZE)
    work.module.eval()  # dropout draws differently
    whole, parts = (
        build_step(Captures(work), COST, StepRequest(strategies()["eager"](), micro_batch=size))
        for size in (BATCH_SIZE, MICRO_BATCH)
    )
    with products_in(Precision.FP32):  # a GPU's convolutions round to TF32 otherwise
        of_whole = run_step(work, lambda: whole(work.inputs, work.targets), {})
        of_parts = run_step(work, lambda: parts(work.inputs, work.targets), {})
    torch.testing.assert_close(of_parts.loss, of_whole.loss, rtol=1e-5, atol=1e-6)
    for name, gradient in of_whole.gradients.items():
        torch.testing.assert_close(of_parts.gradients[name], gradient, rtol=1e-3, atol=1e-5)
    whole.close()
    parts.close()


def test_a_second_step_adds_to_what_the_caller_has_not_cleared_and_takes_no_more_memory() -> None:
    work = workload_of("squeezenet", DEVICE, BATCH_SIZE)
    work.module.eval()
    step = build_step(Captures(work), COST, StepRequest(strategies()["layrub_hybrid"](), micro_batch=MICRO_BATCH))
    step(work.inputs, work.targets)
    once = {name: weight.grad.clone() for name, weight in work.module.named_parameters() if weight.grad is not None}
    assert once
    peaks = [allocator_peak_bytes(lambda: step(work.inputs, work.targets)) for _ in range(2)]
    assert peaks[0] == peaks[1]
    for name, weight in work.module.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, 3 * once[name], rtol=1e-4, atol=1e-6)
    step.close()


def test_gradients_that_the_caller_clears_are_given_back_before_the_next_step() -> None:
    """Two schedules run in a step; neither may keep the sums of the step before."""
    work = workload_of("squeezenet", DEVICE, BATCH_SIZE)
    step = build_step(Captures(work), COST, StepRequest(strategies()["eager"](), micro_batch=MICRO_BATCH))

    def run() -> None:
        work.module.zero_grad(set_to_none=True)
        step(work.inputs, work.targets)

    run()
    held = [weight.grad for weight in work.module.parameters()]
    before = [gradient.clone() for gradient in held if gradient is not None]
    run()
    assert all(torch.equal(a, b) for a, b in zip((g for g in held if g is not None), before, strict=True))
    del held
    sums_bytes = sum(each.nbytes for each in before)
    work.module.zero_grad(set_to_none=True)
    peaks = [allocator_peak_bytes(run) for _ in range(2)]
    assert peaks[0] == peaks[1] + sums_bytes
    step.close()
