"""Checks of the backend of accelerators for weights and arguments in host memory and on the disk."""

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import product
from mmap import PAGESIZE
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.disk_tier import DiskTier
from membench.capture.capture import capture
from membench.conformance.results import Reference
from membench.conformance.steps import check_exact
from membench.core.graph.schedule import Work
from membench.core.step.workload import Workload
from membench.execution.measurement import synchronize
from membench.steps.plan import plan
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.placement import place_workload
from tests.helpers.devices import DEVICE, backend_of, delay
from tests.helpers.emulator import is_locked
from tests.helpers.emulator.accelerator_delays import LATE, check_ended_by, copying_step, each_lateness
from tests.helpers.emulator.accelerator_schedules import case, visiting
from tests.helpers.networks.contract import COST
from tests.helpers.steps.disk import Visits, host_peak_bytes, least_host_bytes, prepared, run_once, within
from tests.helpers.steps.host_updates import HostUpdates
from tests.helpers.steps.updates import MAKERS, plain_training, updating_step


def check_visiting_blocks() -> None:
    """The caller may change weights and arguments once a step has returned."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4)).to(DEVICE).eval()
    batches = [torch.randn(4, 8) for _ in range(4)]
    with torch.no_grad():
        expected = [module(each.to(DEVICE)).cpu() for each in batches]
    work = Workload("linear", module, None, (batches[0].to(DEVICE),))
    captured = capture(work)
    schedule = visiting(captured.graph)
    for is_captured, chaos in product((False, True), (None, LATE)):
        backend: Any = backend_of(schedule, None)
        own = place_workload(deepcopy(work), captured, backend)
        weights = list(own.module.parameters())
        assert all(map(is_locked, weights)), "weights are not in page-locked memory"
        assert backend.pinned.size_bytes % PAGESIZE == 0
        step = CompiledStep(own, captured, schedule, backend)
        step(batches[0])
        delay(chaos)
        backend.is_captured = is_captured  # a step does not wait for its copies
        found = []
        for batch in batches:
            given = batch.clone()
            found.append(step(given))
            given.fill_(torch.nan)
        if not is_captured:
            check_changes(weights)
        assert all(ours.cpu().equal(theirs) for ours, theirs in zip(found, expected, strict=True))
        assert step(batches[1]).cpu().equal(expected[1])
        backend.is_captured = False
        step.close()


def check_changes(weights: list[nn.Parameter]) -> None:
    """Change weights at once behind a step, and put them back once the device has ended it."""
    kept = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.data.fill_(torch.nan)
    synchronize(DEVICE)
    for weight, values in zip(weights, kept, strict=True):
        weight.data.copy_(values)


def check_arguments_on_the_device() -> None:
    """Work of the caller's that is under way before a step, and begins after it, on a stream of the caller's."""
    work = case().work
    for chaos in each_lateness():
        with copying_step(chaos) as step, torch.Stream(DEVICE):
            images = torch.full_like(work.inputs[0], torch.nan)
            images.copy_(work.inputs[0])
            other = replace_inputs(case(), images)
            check_exact(other, step)
            synchronize(DEVICE)


def replace_inputs(reference: Reference, images: Tensor) -> Reference:
    return replace(reference, work=replace(reference.work, inputs=(images,)))


def check_updates_on_the_host() -> None:
    """Weights that the host updates have their new values when a step returns; a failed update is raised."""
    original, make = case().work, MAKERS["adamw"]
    for number, chaos in enumerate(each_lateness()):
        before = set(threading.enumerate())
        own = deepcopy(original)
        optimizer = make(own.module.parameters())
        by = HostUpdates(synchronizes=number == 0)
        step = updating_step(own, optimizer, by, captured=case().captured, chaos=chaos)
        for seed, (loss, module, _) in enumerate(plain_training(original, make, on_host=True)):
            torch.manual_seed(seed)
            with late_updates(type(optimizer)):
                found = step(own.inputs, own.targets)
            for ours, theirs in zip(own.module.parameters(), module.parameters(), strict=True):
                assert ours.detach().cpu().equal(theirs.detach().cpu())
            assert found.equal(loss)
        check_times_of_the_host(step)
        delay(None)
        check_a_failed_update(step, type(optimizer))
        step(own.inputs, own.targets)  # the threads work on
        step.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(timeout=5)
            assert not thread.is_alive(), "a thread outlives the backend"


@contextmanager
def late_updates(optimizer_type: type[torch.optim.Optimizer]) -> Iterator[None]:
    take_step = optimizer_type.step

    def late(optimizer: torch.optim.Optimizer, closure: None = None) -> None:
        time.sleep(0.002)
        take_step(optimizer)

    with patch.object(optimizer_type, "step", late):
        yield


def check_a_failed_update(step: CompiledStep, optimizer_type: type[torch.optim.Optimizer]) -> None:
    """Its error, or the caller's interrupt, comes after the host's other work, and the step's memory is given back."""
    backend_type, ended, errors = type(step.backend), [], [ArithmeticError()]
    on_thread = backend_type._on_thread

    def update(optimizer: torch.optim.Optimizer, closure: None = None) -> None:
        time.sleep(0.02)
        ended.append(optimizer)
        if errors:
            raise errors[0]

    def interrupted(backend: AcceleratorBackend, work: Callable[[], None], stream: str) -> None:
        on_thread(backend, work, stream)
        raise KeyboardInterrupt

    synchronize(DEVICE)
    held_bytes = torch.accelerator.memory_allocated(DEVICE)
    with patch.object(optimizer_type, "step", update):
        check_ended_by(ArithmeticError, step)
        assert ended
        errors.clear()
        ended.clear()
        with patch.object(backend_type, "_on_thread", interrupted):
            check_ended_by(KeyboardInterrupt, step)
        assert ended, "work of the host is under way behind a step that was interrupted"
    gc.collect()
    assert torch.accelerator.memory_allocated(DEVICE) <= held_bytes


def check_times_of_the_host(step: CompiledStep) -> None:
    for span in step.timeline().spans:
        assert 0 <= span.start_s <= span.end_s < 10
        item = step.schedule.instructions[span.instruction]
        assert isinstance(item, Work) and span.stream == item.stream


def check_disk() -> None:
    load = DiskTier.load

    def late(self: DiskTier, block: int, buffer: Tensor) -> None:
        time.sleep(0.003)
        load(self, block, buffer)

    with (
        TemporaryDirectory() as folder,
        patch("membench.planning.host_memory.disk.LEAST_BYTES", 1),
        patch.object(DiskTier, "load", late),
    ):
        free = plan(case().captured.graph, Visits(random.Random(0)), COST, None)
        limit_bytes = (least_host_bytes(free) + host_peak_bytes(free)) // 2
        schedule = within(free, limit_bytes)
        for chaos in each_lateness():
            with prepared(case(), schedule, Path(folder), chaos) as (backend, program, tensors):
                for _ in range(2):
                    found = case().results.difference(run_once(case(), backend, program, tensors))
                    assert not found, found
            synchronize(DEVICE)
            for name, weight in case().work.module.named_parameters():
                assert tensors[case().captured.weights[name]].cpu().equal(weight.detach().cpu()), name
