"""Gradient accumulation in plain PyTorch, and steps in micro-batches with late copies and poisoned memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from membench.backends.cpu import Chaos
from membench.capture.capture import Captures
from membench.core.step.workload import Workload
from membench.steps.plan import StepPlanner
from membench.steps.real.as_run import graph_as_run
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.micro_batched_step import MicroBatchedStep
from membench.steps.real.placement import place_workload
from membench.strategies.base import Strategy
from tests.helpers.devices import DEVICE, backend_of
from tests.helpers.networks.contract import COST


def accumulate(work: Workload, micro_batch: int) -> Tensor:
    """Compute the micro-batches one after another with plain PyTorch, from gradients of zero.

    A weight on which no loss depends gets no gradient.
    """
    assert work.loss is not None
    total = torch.zeros((), device=DEVICE)
    trained = [weight for weight in work.module.parameters() if weight.requires_grad]
    reached: set[Tensor] = set()
    hooks = [weight.register_post_accumulate_grad_hook(reached.add) for weight in trained]
    for weight in trained:
        weight.grad = torch.zeros_like(weight)
    for start in range(0, work.batch_size, micro_batch):
        stop = min(start + micro_batch, work.batch_size)
        inputs, targets = (work.samples(each, start, stop) for each in (work.inputs, work.targets))
        loss = work.loss(work.module(*inputs), *targets)
        share = (stop - start) / work.batch_size
        (loss * share).backward()
        total.add_(loss.detach(), alpha=share)
    for hook in hooks:
        hook.remove()
    for weight in trained:
        if weight not in reached:
            weight.grad = None
    return total


@contextmanager
def step_in_micro_batches(
    captures: Captures, strategy: Strategy, micro_batch: int, chaos: Chaos | None
) -> Iterator[MicroBatchedStep]:
    work = captures.workload
    runs = StepPlanner(
        lambda size: graph_as_run(captures, COST, size), work.batch_size, strategy, COST, micro_batch=micro_batch
    ).within(None)
    loss = torch.zeros((), device=DEVICE)
    steps = []
    for run in runs:
        size = run.schedule.graph.batch_size
        backend = backend_of(run.schedule, chaos)
        work = place_workload(work, captures.at(size), backend)
        part = CompiledStep(work.of_size(size), captures.at(size), run.schedule, backend, loss_accumulator=loss)
        steps.append(part)
    step = MicroBatchedStep(work, runs, tuple(steps), loss)
    yield step
    step.close()
