"""Measurement of a run's memory and time."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from membench.backends.tensor_backend import TensorBackend
from membench.core.torch_internals import MemoryRecorder, keep_gpu_busy, profiled_events

_WAKING_S = 0.2
_HIGHEST_CLOCK_HZ = 3e9
"""An upper bound of GPU clocks."""


@dataclass(frozen=True)
class Throughput:
    """Synchronised wall time of windows of steps.

    Attributes:
        images_per_step: the batch size.
        window_times_s: one sample per window, in the order of measurement.
    """

    images_per_step: int
    steps_per_window: int
    window_times_s: tuple[float, ...]

    @property
    def step_time_s(self) -> float:
        """Seconds per step of the median window."""
        return statistics.median(self.window_times_s) / self.steps_per_window

    @property
    def images_per_s(self) -> float:
        return self.images_per_step / self.step_time_s

    @property
    def samples_images_per_s(self) -> tuple[float, ...]:
        """Images per second of each window."""
        images = self.images_per_step * self.steps_per_window
        return tuple(images / time_s for time_s in self.window_times_s)

    @property
    def interquartile_images_per_s(self) -> float:
        """Interquartile range of the samples; 0 for a single one."""
        if len(self.window_times_s) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.samples_images_per_s, n=4, method="inclusive")
        return third - first


def throughput(
    run: Callable[[], object],
    device: torch.device,
    *,
    images_per_step: int,
    steps_per_window: int,
    windows: int,
) -> Throughput:
    """Time windows of many steps; the host waits for the device before and after each window, but not within it."""
    wake(device)
    times_s = []
    for _ in range(windows):
        synchronize(device)
        start_s = time.perf_counter()
        for _ in range(steps_per_window):
            run()
        synchronize(device)
        times_s.append(time.perf_counter() - start_s)
    return Throughput(images_per_step, steps_per_window, tuple(times_s))


def synchronize(device: torch.device) -> None:
    """Wait for the device; the CPU's work has ended when its call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wake(device: torch.device) -> None:
    """Raise a GPU's clock, which falls while the host captures and plans."""
    if device.type == "cuda":
        keep_busy(_WAKING_S)
        synchronize(device)


def keep_busy(seconds: float) -> None:
    """Keep the current GPU busy for at least that long, and return at once."""
    keep_gpu_busy(round(seconds * _HIGHEST_CLOCK_HZ))


def peak_bytes(
    run: Callable[[], object], device: torch.device, backends: Sequence[TensorBackend] = ()
) -> int:
    """Return the peak of torch's allocator for the device during `run`, minus the bytes that it held before.

    Args:
        backends: those that `run` uses.
    """
    return cuda_peak_bytes(run, device) if device.type == "cuda" else cpu_peak_bytes(run, backends)


def cuda_peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Return the peak by the allocator's counter of allocated bytes, which counts pieces of 512 bytes."""
    synchronize(device)
    held_bytes = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) - held_bytes


def cpu_peak_bytes(run: Callable[[], object], backends: Sequence[TensorBackend] = ()) -> int:
    """Return the peak by the allocator's events; memory outside of it (numpy's, a library's) does not count.

    Args:
        backends: their threads count as well as the calling one.
    """
    recorder = MemoryRecorder()
    for backend in backends:
        backend.recorder = recorder
    try:
        with recorder.record():
            run()
    finally:
        for backend in backends:
            backend.recorder = None
    return peak_of(recorder.changes_bytes())


def memory_events(profile: torch.profiler.profile) -> list[tuple[int, int]]:
    """Return (time in ns, bytes allocated or, negative, freed) in the order of time."""
    events = profiled_events(profile)
    changes = ((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return sorted(changes, key=lambda change: change[0])


def peak_of(changes: list[int]) -> int:
    """Return the highest sum of the first changes; 0 if all sums are negative."""
    return max(accumulate(changes, initial=0))
