"""Bandwidth of pinned copies between host and device."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import torch
from torch import Tensor

from membench.backends.cpu import copy_bytes
from membench.backends.pinned import PinnedMemory
from membench.core.units import KIB, MIB
from membench.execution.measurement import keep_busy

_CPU_BYTES = 64 * MIB
ACCELERATOR_BYTES = 512 * MIB
_SMALL_BYTES = 4 * KIB
_REPETITIONS = 5
_MATRIX_SIZE = 1024
_PRODUCTS = 10
_ISSUING_S = 1e-3
"""Longer than the host takes to issue a measurement's copies, so that these wait only for each other."""


@dataclass(frozen=True)
class Link:
    """Rates of copies, in bytes per second, in one direction at a time and in both together.

    Attributes:
        pageable_device_to_host_bytes_per_s, pageable_host_to_device_bytes_per_s: with host memory that is not pinned.
        latency_s: time of a small copy.
        delay_s_per_byte: by how much a copy delays tasks that run meanwhile; 0 where an engine of its own copies.
    """

    device_to_host_bytes_per_s: float
    host_to_device_bytes_per_s: float
    device_to_host_together_bytes_per_s: float
    host_to_device_together_bytes_per_s: float
    latency_s: float
    pageable_device_to_host_bytes_per_s: float
    pageable_host_to_device_bytes_per_s: float
    delay_s_per_byte: float = 0.0

    @property
    def full_duplex(self) -> bool:
        """Whether both directions together are more than 1.3 times as fast as the faster one."""
        together = self.device_to_host_together_bytes_per_s + self.host_to_device_together_bytes_per_s
        return together > 1.3 * max(self.device_to_host_bytes_per_s, self.host_to_device_bytes_per_s)


def measure_link(device: torch.device) -> Link:
    """Measure copies of large blocks; on the CPU, whose "device" is host memory, one for both directions."""
    if device.type != "cpu":
        return _accelerator_link(device)
    source, target = (torch.zeros(_CPU_BYTES, dtype=torch.uint8) for _ in range(2))
    times_s = []
    for _ in range(_REPETITIONS):
        start_s = time.perf_counter()
        copy_bytes(target, source)
        times_s.append(time.perf_counter() - start_s)
    rate = _CPU_BYTES / statistics.median(times_s[1:])  # the first copy is a cold start
    return Link(rate, rate, rate, rate, 0.0, rate, rate, _delay_s_per_byte(target, source))


def _delay_s_per_byte(target: Tensor, source: Tensor) -> float:
    """Return the seconds that products of matrices on all cores lose per byte that another thread copies."""
    matrix = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE)
    finished = Event()

    def copy() -> int:
        copies = 0
        while not finished.is_set():
            copy_bytes(target, source)
            copies += 1
        return copies

    def products_s() -> float:
        start_s = time.perf_counter()
        for _ in range(_PRODUCTS):
            matrix @ matrix
        return time.perf_counter() - start_s

    products_s()  # a cold start
    alone_s = products_s()
    with ThreadPoolExecutor(1) as other:
        copies = other.submit(copy)
        together_s = products_s()
        finished.set()
        return max(0.0, together_s - alone_s) / (copies.result() * len(source))


def _accelerator_link(device: torch.device) -> Link:
    pinned = PinnedMemory(device)
    hosts = [pinned.take(ACCELERATOR_BYTES) for _ in range(2)]
    devices = [torch.zeros(ACCELERATOR_BYTES, dtype=torch.uint8, device=device) for _ in range(2)]
    out, back = (hosts[0], devices[0]), (devices[1], hosts[1])
    small = (hosts[0][:_SMALL_BYTES], devices[0][:_SMALL_BYTES])
    for pair in (out, back, small):
        _copy_times_s([pair], device)  # the first copy wakes the link
    out_s, back_s, small_s = (_copy_times_s([pair], device)[0] for pair in (out, back, small))
    times_s = (out_s, back_s, *_copy_times_s([out, back], device))
    out_rate, back_rate, out_together, back_together = (ACCELERATOR_BYTES / time_s for time_s in times_s)
    pinned.close()
    pageable = torch.zeros(ACCELERATOR_BYTES, dtype=torch.uint8)
    pageable_rates = [
        ACCELERATOR_BYTES / _copy_times_s([pair], device)[0]
        for pair in ((pageable, devices[0]), (devices[1], pageable))
    ]
    return Link(out_rate, back_rate, out_together, back_together, small_s, *pageable_rates)


def _copy_times_s(pairs: list[tuple[Tensor, Tensor]], device: torch.device) -> list[float]:
    """Return each pair's seconds per copy from source to target, all pairs at once on separate streams."""
    torch.accelerator.synchronize(device)
    marks = []
    for target, source in pairs:
        stream = torch.Stream(device)
        start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        with stream:
            keep_busy(_ISSUING_S)
            start.record(stream)
            for _ in range(_REPETITIONS):
                target.copy_(source, non_blocking=True)
            end.record(stream)
        marks.append((start, end))
    torch.accelerator.synchronize(device)
    return [start.elapsed_time(end) * 1e-3 / _REPETITIONS for start, end in marks]
