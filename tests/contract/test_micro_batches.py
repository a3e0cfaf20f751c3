"""Every strategy in micro-batches: PyTorch's gradient accumulation to the bit, and its predicted peak."""

from functools import cache

import pytest
import torch
from torch import Tensor

from membench.backends.cpu import Chaos
from membench.capture.capture import Captures
from membench.execution.measurement import Throughput, cpu_peak_bytes
from membench.steps.compile import build_step
from membench.steps.micro_batched_step import MicroBatchedStep
from membench.strategies.base import strategies
from tests.helpers.micro_batches import accumulate, step_in_micro_batches
from tests.helpers.networks import COST, NETWORKS, Results, run_step, workload
from tests.helpers.variants import VARIANTS

BATCH_SIZE = 5
MICRO_BATCH = 2  # twice, and once the sample that is left over


@cache
def accumulated(
    network: str, batch_size: int, micro_batch: int
) -> tuple[Captures, dict[str, Tensor], Results]:
    """Return a network with its buffers before a step, and what plain PyTorch computes."""
    work = workload(NETWORKS[network], network, batch_size)
    buffers = {name: buffer.clone() for name, buffer in work.module.named_buffers()}
    results = run_step(work, lambda: accumulate(work, micro_batch), buffers)
    return Captures(work), buffers, results


@pytest.mark.parametrize("strategy", strategies())
@pytest.mark.parametrize("network", ["squeezenet", "resnet18"])
def test_micro_batches_accumulate_as_pytorch_does(network: str, strategy: str) -> None:
    captures, buffers, expected = accumulated(network, BATCH_SIZE, MICRO_BATCH)
    work = captures.workload
    step = build_step(captures, strategies()[strategy](), COST, None, micro_batch=MICRO_BATCH)
    assert isinstance(step, MicroBatchedStep)
    assert [(part.schedule.graph.batch_size, part.count) for part in step.plan] == [(2, 2), (1, 1)]
    results = run_step(work, lambda: step(work.inputs, work.targets), buffers)
    expected.check(results, rounding=step.plan[0].schedule.rounding)
    measured = step.measure(samples=Throughput(BATCH_SIZE, 1, (1.0,)))
    assert measured.peak_bytes == step.predicted_peak_bytes
    assert all(weight.grad is None for weight in work.module.parameters())
    step.close()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("network", "batch_size", "micro_batch"),
    [
        pytest.param("densenet", 4, 2, marks=pytest.mark.slow),
        pytest.param("googlenet", 4, 3, marks=pytest.mark.slow),
        ("lstm_cnn", 4, 2),
        pytest.param("mobilenet_v2", 6, 2, marks=pytest.mark.slow),
        pytest.param("resnet50", 5, 3, marks=pytest.mark.slow),
        pytest.param("vit", 3, 2, marks=pytest.mark.slow),
    ],
)
def test_micro_batches_are_exact_even_when_copies_are_late_and_freed_memory_is_poisoned(
    network: str, batch_size: int, micro_batch: int, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if network == "lstm_cnn":
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # oneDNN's LSTM rounds otherwise
    captures, buffers, expected = accumulated(network, batch_size, micro_batch)
    work = captures.workload
    chaos = Chaos(seed=5, longest_delay_s=0.0003)
    with step_in_micro_batches(captures, VARIANTS[variant], micro_batch, chaos) as step:
        results = run_step(work, lambda: step(work.inputs, work.targets), buffers)
        expected.check(results, rounding=step.plan[0].schedule.rounding)


def test_without_batch_norm_micro_batches_give_the_gradients_of_the_whole_batch() -> None:
    work = workload(NETWORKS["squeezenet"], "squeezenet", BATCH_SIZE)
    work.module.eval()  # dropout draws differently
    whole, parts = (
        build_step(Captures(work), strategies()["eager"](), COST, None, micro_batch=size)
        for size in (BATCH_SIZE, MICRO_BATCH)
    )
    of_whole = run_step(work, lambda: whole(work.inputs, work.targets), {})
    of_parts = run_step(work, lambda: parts(work.inputs, work.targets), {})
    torch.testing.assert_close(of_parts.loss, of_whole.loss, rtol=1e-5, atol=1e-6)
    for name, gradient in of_whole.gradients.items():
        torch.testing.assert_close(of_parts.gradients[name], gradient, rtol=1e-3, atol=1e-5)
    whole.close()
    parts.close()


def test_a_second_step_adds_to_what_the_caller_has_not_cleared_and_takes_no_more_memory() -> None:
    work = workload(NETWORKS["squeezenet"], "squeezenet", BATCH_SIZE)
    work.module.eval()
    step = build_step(Captures(work), strategies()["layrub_hybrid"](), COST, None, micro_batch=MICRO_BATCH)
    step(work.inputs, work.targets)
    once = {
        name: weight.grad.clone()
        for name, weight in work.module.named_parameters()
        if weight.grad is not None
    }
    assert once
    peaks = [cpu_peak_bytes(lambda: step(work.inputs, work.targets)) for _ in range(2)]
    assert peaks[0] == peaks[1]
    for name, weight in work.module.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad, 3 * once[name], rtol=1e-4, atol=1e-6)
    step.close()


def test_gradients_that_the_caller_clears_are_given_back_before_the_next_step() -> None:
    """Two schedules run in a step; neither may keep the sums of the step before."""
    work = workload(NETWORKS["squeezenet"], "squeezenet", BATCH_SIZE)
    step = build_step(Captures(work), strategies()["eager"](), COST, None, micro_batch=MICRO_BATCH)

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
    peaks = [cpu_peak_bytes(run) for _ in range(2)]
    assert peaks[0] == peaks[1] + sums_bytes
    step.close()
