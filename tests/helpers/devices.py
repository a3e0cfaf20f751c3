"""The device that the contract is tested on: the CPU, or what MEMBENCH_TEST_DEVICE names: ``emulated`` or ``cuda``."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.cpu import Chaos, CpuBackend
from membench.backends.tensor_backend import TensorBackend
from membench.core.schedule import Schedule
from membench.execution.measurement import peak_bytes
from tests.helpers.emulator import delay_jobs, load_emulator

_NAME = os.environ.get("MEMBENCH_TEST_DEVICE", "cpu")
IS_EMULATED = _NAME == "emulated"


def _device() -> torch.device:
    if IS_EMULATED:
        return load_emulator()
    if _NAME == "cuda":
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # deterministic products; read when cuBLAS starts
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    return torch.device(_NAME, *([0] if _NAME == "cuda" else []))


DEVICE = _device()


def backend_of(
    schedule: Schedule, chaos: Chaos | None = None, disk_folder: Path | None = None
) -> TensorBackend:
    """Return the device's backend; on an emulated GPU everything is late by the delays of `chaos` from now on."""
    backend: TensorBackend
    if DEVICE.type == "cpu":
        backend = CpuBackend(schedule.graph, chaos=chaos)
    else:
        backend = AcceleratorBackend(schedule, DEVICE)
        delay(chaos)
    backend.disk_folder = disk_folder or backend.disk_folder
    return backend


def delay(chaos: Chaos | None) -> None:
    """Delay copies and kernels of an emulated GPU from now on; None: no longer. Other devices do nothing."""
    if IS_EMULATED:
        delay_jobs(*((chaos.seed, chaos.longest_delay_s) if chaos else (0, 0.0)))


def allocator_peak_bytes(run: Callable[[], object], backends: Sequence[TensorBackend] = ()) -> int:
    """Return the peak of the device's allocator during a run, see `peak_bytes`."""
    return peak_bytes(run, DEVICE, backends)
