"""Measurement of a run's memory and time."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import torch

from membench.backends.tensor_backend import TensorBackend
from membench.core.libraries.garbage import without_collection
from membench.core.libraries.torch_devices import MemoryRecorder, is_profiled, keep_gpu_busy

Result = TypeVar("Result")

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
    run: Callable[[], object], device: torch.device, *, images_per_step: int, steps_per_window: int, windows: int
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
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def wake(device: torch.device) -> None:
    """Raise a GPU's clock, which falls while the host captures and plans."""
    if device.type != "cpu":
        keep_busy(_WAKING_S)
        synchronize(device)


def keep_busy(seconds: float) -> None:
    """Keep the current GPU busy for at least that long, and return at once; torch can only on CUDA's and ROCm's."""
    if torch.cuda.is_available():
        keep_gpu_busy(round(seconds * _HIGHEST_CLOCK_HZ))


def peak_bytes(run: Callable[[], object], device: torch.device, backends: Sequence[TensorBackend] = ()) -> int:
    """Return the most bytes in use of torch's allocator for the device during `run`, minus those in use before.

    Bytes as they were requested: an accelerator's allocator rounds each request up, as no schedule does.

    Args:
        backends: those that `run` uses.
    """
    return peaks_bytes([run], device, backends)[0]


def peaks_bytes(
    runs: Iterable[Callable[[], object]], device: torch.device, backends: Sequence[TensorBackend] = ()
) -> list[int]:
    """Return the allocator's peak during each of the runs, minus the bytes that it held before the first one.

    Args:
        backends: those that the runs use.
    """
    peaks, grown_bytes = [], 0
    for run in runs:
        if device.type != "cpu":
            peak, growth = _accelerator_peak_and_growth(run, device)
        else:
            peak, growth = _cpu_peak_and_growth(run, backends)
        peaks.append(grown_bytes + peak)
        grown_bytes += growth
    return peaks


def accelerator_peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """See `peak_bytes`."""
    return _accelerator_peak_and_growth(run, device)[0]


def cpu_peak_bytes(run: Callable[[], object], backends: Sequence[TensorBackend] = ()) -> int:
    """Return the peak of the allocator; memory outside of it (numpy's, a library's) does not count.

    Args:
        backends: their threads count as well as the calling one.
    """
    return _cpu_peak_and_growth(run, backends)[0]


def _settle_frees(device: torch.device) -> None:
    """Wait for a device, and let CUDA's allocator take back what other streams have used.

    What a collective or `record_stream` has marked counts there as allocated until the first request after that
    stream's work.
    """
    synchronize(device)
    if device.type == "cuda":
        torch.empty(1, device=device)


def _accelerator_peak_and_growth(run: Callable[[], object], device: torch.device) -> tuple[int, int]:
    _settle_frees(device)
    torch.accelerator.reset_peak_memory_stats(device)
    held_bytes = torch.accelerator.memory_stats(device)["requested_bytes.all.current"]
    run()
    _settle_frees(device)
    after = torch.accelerator.memory_stats(device)
    return after["requested_bytes.all.peak"] - held_bytes, after["requested_bytes.all.current"] - held_bytes


def _cpu_peak_and_growth(run: Callable[[], object], backends: Sequence[TensorBackend]) -> tuple[int, int]:
    _, changes = _recorded(run, backends)
    return peak_of(changes), sum(changes)


def with_cpu_peak(run: Callable[[], Result]) -> tuple[Result, int]:
    """Return the result of a run, and the peak of the CPU's allocator during it in bytes."""
    result, changes = _recorded(run, ())
    return result, peak_of(changes)


def peak_of(changes: list[int]) -> int:
    """Return the highest sum of the first changes; 0 if all sums are negative."""
    return max(accumulate(changes, initial=0))


def _recorded(run: Callable[[], Result], backends: Sequence[TensorBackend]) -> tuple[Result, list[int]]:
    """Return the result of a run, and the bytes that the CPU's allocator gave or, negative, took back, in order.

    A thread has one profiler at most: where the caller's is running, the run has a thread of its own. Garbage is not
    collected meanwhile: for tensors of earlier work that are freed then, torch's allocator prints a warning.
    """
    recorder = MemoryRecorder()

    def recorded() -> Result:
        with recorder.record():
            return run()

    for backend in backends:
        backend.recorder = recorder
    try:
        with without_collection():
            if is_profiled():
                with ThreadPoolExecutor(1) as own:
                    result = own.submit(recorded).result()
            else:
                result = recorded()
    finally:
        for backend in backends:
            backend.recorder = None
    return result, recorder.changes_bytes()
