"""What the backend of accelerators must do, each as a check that fails if it does not, on the emulated GPU."""

import gc
import threading
from collections.abc import Callable
from mmap import PAGESIZE
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from membench.backends import accelerator
from membench.backends.accelerator import AcceleratorBackend
from membench.conformance.results import Reference
from membench.conformance.steps import check_exact, check_peak
from membench.core.graph.schedule import COMPUTE_STREAM, Schedule, Wait, Work
from membench.core.graph.timeline import Timeline
from membench.execution.measurement import synchronize
from membench.planning.parallel.exchange import Exchange, exchange_gradients
from membench.steps.real.compiled_step import CompiledStep
from tests.helpers import devices
from tests.helpers.devices import DEVICE, delay
from tests.helpers.emulator import awaited_copies, is_locked, stall
from tests.helpers.emulator.accelerator_delays import LATE, VERY_LATE, check_ended_by, copying_step, each_lateness
from tests.helpers.emulator.accelerator_host_checks import (
    check_arguments_on_the_device,
    check_disk,
    check_updates_on_the_host,
    check_visiting_blocks,
)
from tests.helpers.emulator.accelerator_schedules import SUMS, case, copying, on_streams, schedule_by, sums_on_a_stream
from tests.helpers.networks.random_networks import random_reference
from tests.helpers.steps.checks import step_of

MOST_STEPS = 20
"""In which a copy must run beside a task."""


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


def check_new_memory_is_of_the_compute_streams_position() -> None:
    """Another stream's write to memory allocated for it begins behind all that the compute stream has been given."""
    backend_type = devices.AcceleratorBackend
    begun_behind: list[bool] = []

    def behind_a_stall(issue: Callable[..., object]) -> Callable[..., object]:
        def issued(self: AcceleratorBackend, *args: Any) -> object:
            *_, name = args
            if name != "codec" or begun_behind:  # the first one says it, and each costs a stall
                return issue(self, *args)
            stall(0.05)
            given, written = torch.Event(DEVICE), torch.Event(DEVICE)
            given.record(torch.accelerator.current_stream(DEVICE))
            end = issue(self, *args)
            written.record(self._own_streams[name])
            written.synchronize()
            begun_behind.append(given.query())
            return end

        return issued

    for name in ("encode", "decode"):
        begun_behind.clear()
        with (
            patch.object(backend_type, name, behind_a_stall(getattr(backend_type, name))),
            step_of(case(), on_streams(), None) as step,
        ):
            check_exact(case(), step)
        assert begun_behind == [True], name


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
        # each step's delays are others, and a busy processor may run the streams one after the other
        assert any(overlap(check_timeline(step)) for _ in range(MOST_STEPS)), "no copy has run beside a task"
    for schedule in (on_streams(), exchange_gradients(copying(), Exchange.AS_MADE)):
        with patch("membench.core.libraries.distributed.average"), step_of(case(), schedule, VERY_LATE) as step:
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


def overlap(timeline: Timeline) -> bool:
    """Return whether a copy has run beside a task."""
    tasks = [span for span in timeline.spans if span.stream == COMPUTE_STREAM]
    copies = [span for span in timeline.spans if span.stream != COMPUTE_STREAM]
    return any(task.start_s < copy.end_s and copy.start_s < task.end_s for copy in copies for task in tasks)


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
        locked = [piece for piece, _ in step.backend.pinned.pieces]  # type: ignore[attr-defined]
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
        with patch.object(backend_type, "prefetch", interrupted), copying_step(LATE) as step:
            is_interrupted.set()
            check_ended_by(KeyboardInterrupt, step)
            is_interrupted.clear()
            check_exact(case(), step)
            stalls_s.pop()


def check_exchange() -> None:
    """An average is taken between the kernels that make a gradient and those that read it: here it doubles."""
    work, callers = case().work, torch.accelerator.current_stream(DEVICE)

    def double(tensor: Tensor, root: int | None, what: str) -> None:
        assert torch.accelerator.current_stream(DEVICE) != callers, "the exchange is on the caller's stream"
        tensor.mul_(2.0)

    schedule = exchange_gradients(copying(), Exchange.AS_MADE)
    with patch("membench.core.libraries.distributed.average", double):
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
    """In the capture of a CUDA graph's step the host waits for nothing, and the compute stream follows all others."""
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
    check_closing,
    check_exchange,
    check_visiting_blocks,
    check_updates_on_the_host,
    check_steps_of_a_graph,
    check_disk,
    check_new_memory_is_of_the_compute_streams_position,
    check_times,
    check_an_interrupted_step,
    check_tasks_and_codecs_on_streams,
    check_arguments_on_the_device,
    check_memory_by_torch,
    check_copies,
    check_memory_is_flat,
    check_the_host_waits_for_nothing,
]
"""First those that find the most mutants in the least time; of the last five each finds a fourth of them or more."""
