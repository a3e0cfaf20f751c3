"""What the backend of accelerators must do, each as a check that fails if it does not, on the emulated GPU."""

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

from membench.backends import accelerator
from membench.backends.accelerator import AcceleratorBackend
from membench.backends.cpu import Chaos
from membench.backends.disk_tier import DiskTier
from membench.capture.capture import capture
from membench.core.schedule import (
    COMPUTE_STREAM,
    Schedule,
    Wait,
    Work,
)
from membench.core.timeline import Timeline
from membench.core.workload import Workload
from membench.execution.measurement import synchronize
from membench.planning.parallel.exchange import Exchange, exchange_gradients
from membench.steps.plan import plan
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.placement import place_workload
from tests.helpers import devices
from tests.helpers.accelerator_schedules import (
    SUMS,
    case,
    copying,
    on_streams,
    schedule_by,
    sums_on_a_stream,
    visiting,
)
from tests.helpers.checks import check_exact, check_peak, step_of
from tests.helpers.devices import DEVICE, backend_of, delay
from tests.helpers.disk import Visits, host_peak_bytes, least_host_bytes, prepared, run_once, within
from tests.helpers.emulator import awaited_copies, is_locked, stall
from tests.helpers.host_updates import HostUpdates
from tests.helpers.networks import COST, Reference
from tests.helpers.random_networks import random_reference
from tests.helpers.updates import MAKERS, plain_training, updating_step

LATE = Chaos(seed=0, longest_delay_s=0.001)
VERY_LATE = Chaos(seed=0, longest_delay_s=0.01)


def each_lateness() -> Iterator[Chaos | None]:
    """Make the compute stream's work late, then that of all others, then any at random."""
    for is_late in (COMPUTE_STREAM.__eq__, COMPUTE_STREAM.__ne__):
        with late_work(is_late):
            yield None
    yield LATE


@contextmanager
def late_work(is_late: Callable[[str], bool]) -> Iterator[None]:
    """Keep streams of these names busy before each of their tasks and copies, and before memory is given out."""
    issue, allocate = devices.AcceleratorBackend._issue, devices.AcceleratorBackend._allocate

    def issue_late(self: AcceleratorBackend, name: str, work: Callable[..., object], *args: Any) -> object:
        def late(*given: Any) -> object:
            stall(0.0004)
            return work(*given)

        return issue(self, name, late if is_late(name) else work, *args)

    def allocate_late(self: AcceleratorBackend, block: int) -> None:
        if is_late(COMPUTE_STREAM):
            stall(0.0004)
        allocate(self, block)

    with patch.multiple(devices.AcceleratorBackend, _issue=issue_late, _allocate=allocate_late):
        yield


def check_variants(*variants: str) -> None:
    """Two steps of each are exact however late copies and kernels are, in the stated memory."""
    for variant in variants:
        check_schedule(schedule_by(variant))


def check_schedule(schedule: Schedule, reference: Reference | None = None) -> None:
    reference = reference or case()
    for chaos in each_lateness():
        with step_of(reference, schedule, chaos) as step:
            check_exact(reference, step)
            check_exact(reference, step)
            check_peak(reference, step)


def check_copies() -> None:
    check_schedule(copying())
    check_variants("layrub_hybrid", "geeps")


def check_tasks_and_codecs_on_streams() -> None:
    check_schedule(on_streams())
    check_schedule(sums_on_a_stream(), random_reference(SUMS, seed=0))
    check_variants("network_wide, gradient streams", "epmc")


@contextmanager
def copying_step(chaos: Chaos | None) -> Iterator[CompiledStep]:
    """Yield a step that offloads and prefetches, and has run twice."""
    with step_of(case(), copying(), None) as step:
        for _ in range(2):
            check_exact(case(), step)
        delay(chaos)
        yield step
        delay(None)


def check_the_host_waits_for_nothing() -> None:
    work = case().work
    with copying_step(VERY_LATE) as step:
        synchronize(DEVICE)
        before = awaited_copies()
        step(work.inputs, work.targets)
        assert not torch.accelerator.current_stream(DEVICE).query(), "the host has waited for the step"
        assert awaited_copies() == before, "the host has waited for a copy"
        synchronize(DEVICE)
        work.module.zero_grad(set_to_none=True)


def check_times() -> None:
    """Work begins after what its stream waits for, and copies run beside tasks."""
    with copying_step(VERY_LATE) as step:
        check_overlap(check_timeline(step))
    for schedule in (on_streams(), exchange_gradients(copying(), Exchange.AS_MADE)):
        with patch("membench.core.distributed.average"), step_of(case(), schedule, VERY_LATE) as step:
            check_timeline(step)


def check_timeline(step: CompiledStep) -> Timeline:
    timeline = step.timeline()
    spans = {span.instruction: span for span in timeline.spans}
    awaited: dict[str, list[int]] = {}
    for number, item in enumerate(step.schedule.instructions):
        if isinstance(item, Wait):
            awaited.setdefault(item.stream, []).append(item.instruction)
        elif isinstance(item, Work):
            assert 0 <= spans[number].start_s <= spans[number].end_s <= timeline.step_time_s + 1.0
            assert spans[number].stream == item.stream
            for other in awaited.get(item.stream, ()):
                assert spans[other].end_s <= spans[number].start_s, f"{number} has begun before {other} ended"
    assert timeline.step_time_s >= max(s.end_s for s in timeline.spans if s.stream == COMPUTE_STREAM)
    return timeline


def check_overlap(timeline: Timeline) -> None:
    tasks = [span for span in timeline.spans if span.stream == COMPUTE_STREAM]
    copies = [span for span in timeline.spans if span.stream != COMPUTE_STREAM]
    assert any(
        task.start_s < copy.end_s and copy.start_s < task.end_s for copy in copies for task in tasks
    ), "no copy has run beside a task"


def check_memory_is_flat() -> None:
    work = case().work
    gc.collect()

    def held() -> tuple[int, int]:
        step(work.inputs, work.targets)
        work.module.zero_grad(set_to_none=True)
        synchronize(DEVICE)
        return torch.accelerator.memory_allocated(DEVICE), step.backend.pinned.size_bytes  # type: ignore[attr-defined]

    with copying_step(None) as step:
        assert len({held() for _ in range(4)}) == 1
        locked_bytes = step.backend.pinned.size_bytes  # type: ignore[attr-defined]
        assert locked_bytes > 0 and locked_bytes % PAGESIZE == 0


def check_closing() -> None:
    """Page locks end with the backend, after its copies."""
    work = case().work
    with copying_step(VERY_LATE) as step:
        step(work.inputs, work.targets)
        locked = [piece for piece, _ in step.backend.pinned._pieces]  # type: ignore[attr-defined]
        assert all(map(is_locked, locked))
        step.close()
        synchronize(DEVICE)  # raises the error of a copy
        assert step.backend.pinned.size_bytes == 0  # type: ignore[attr-defined]
        assert not any(map(is_locked, locked))
        assert not step.backend._host, "host memory is held behind the step"
        work.module.zero_grad(set_to_none=True)


def check_an_interrupted_step() -> None:
    """A step that ends in the middle, while copies run, does not affect the next one."""
    backend_type = devices.AcceleratorBackend
    prefetch, is_interrupted = backend_type.prefetch, threading.Event()
    stalls_s = [0.001, 0.002, 0.004, 0.008, 0.016, 0.03]

    def interrupted(self: AcceleratorBackend, block: int, stream: str) -> object:
        if is_interrupted.is_set():
            with self._stream(stream):
                stall(stalls_s[-1])
            prefetch(self, block, stream)
            raise KeyboardInterrupt
        return prefetch(self, block, stream)

    while stalls_s:
        with (
            patch.object(backend_type, "prefetch", interrupted),
            copying_step(LATE) as step,
        ):
            is_interrupted.set()
            check_ended_by(KeyboardInterrupt, step)
            is_interrupted.clear()
            check_exact(case(), step)
            stalls_s.pop()


# ---- weights and arguments in host memory ---------------------------------------------------------------------------


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
            thread.join(timeout=2)
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
    """Its error is raised, after all other work of the host, and the step's memory is given back; so if the caller interrupts it."""
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


def check_ended_by(error: type[BaseException], step: CompiledStep) -> None:
    try:
        step(step.workload.inputs, step.workload.targets)
    except error:
        return
    raise AssertionError(f"{error.__name__} has not ended the step")


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


def check_exchange() -> None:
    """An average is taken between the kernels that make a gradient and those that read it: here it doubles."""
    work, callers = case().work, torch.accelerator.current_stream(DEVICE)

    def double(tensor: Tensor, root: int | None, what: str) -> None:
        assert torch.accelerator.current_stream(DEVICE) != callers, "the exchange is on the caller's stream"
        tensor.mul_(2.0)

    schedule = exchange_gradients(copying(), Exchange.AS_MADE)
    with patch("membench.core.distributed.average", double):
        for chaos in each_lateness():
            with step_of(case(), schedule, chaos) as step:
                for name, buffer in work.module.named_buffers():
                    buffer.copy_(case().buffers[name])
                torch.manual_seed(1)
                step(work.inputs, work.targets)
                for name, weight in work.module.named_parameters():
                    expected = case().results.gradients[name]
                    assert (expected is None) is (weight.grad is None)
                    assert expected is None or weight.grad.equal(2.0 * expected), name  # type: ignore[union-attr]
                work.module.zero_grad(set_to_none=True)
            streams = step.backend._own_streams  # type: ignore[attr-defined]
            assert "exchange" in streams and len(set(streams.values())) == len(streams)


def check_steps_of_a_graph() -> None:
    """Where the step of a CUDA graph is captured, the host waits for nothing, and the compute stream follows all others."""
    for schedule in (copying(), schedule_by("layrub_hybrid")):
        for chaos in each_lateness():
            with step_of(case(), schedule, None) as step:
                step.backend.is_captured = True  # type: ignore[attr-defined]
                check_exact(case(), step)
                delay(chaos)
                check_exact(case(), step)
                synchronize(DEVICE)
                step(case().work.inputs, case().work.targets)
                current = torch.accelerator.current_stream(DEVICE)
                assert not current.query(), "the host has waited for the step"
                with step.backend._stream("copy"):  # type: ignore[attr-defined]
                    stall(0.01)
                    copied = torch.Event(DEVICE)
                    copied.record()
                step.backend.end()
                current.synchronize()
                assert copied.query(), "a stream was not joined"
                case().work.module.zero_grad(set_to_none=True)
                step.backend.is_captured = False  # type: ignore[attr-defined]


def check_memory_by_torch() -> None:
    """Where the device's runtime locks no pages, host memory is that of torch's allocator for such memory."""
    take = accelerator.PinnedMemory.take
    with patch.dict(take.__globals__, locks_pages=lambda device: False):
        check_the_host_waits_for_nothing()
        with copying_step(None) as step:
            assert step.backend.pinned.size_bytes > 0  # type: ignore[attr-defined]


CHECKS: list[Callable[[], None]] = [
    check_the_host_waits_for_nothing,
    check_memory_by_torch,
    check_exchange,
    check_arguments_on_the_device,
    check_visiting_blocks,
    check_memory_is_flat,
    check_closing,
    check_an_interrupted_step,
    check_disk,
    check_steps_of_a_graph,
    check_times,
    check_tasks_and_codecs_on_streams,
    check_copies,
    check_updates_on_the_host,
]
"""The quick ones first."""
