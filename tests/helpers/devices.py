"""The device that the contract is tested on: the CPU, or what MEMBENCH_TEST_DEVICE names: ``emulated`` or ``cuda``."""

import atexit
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.cpu import Chaos, CpuBackend
from membench.backends.tensor_backend import TensorBackend
from membench.core.graph.schedule import Schedule
from membench.core.libraries.distributed import join
from membench.core.units import MIB
from membench.execution.measurement import peak_bytes
from tests.helpers.emulator import Runtime, collect_by, delay_jobs, load_emulator
from tests.helpers.emulator.codecs import cpu_codecs

_NAME = os.environ.get("MEMBENCH_TEST_DEVICE", "cpu")
IS_EMULATED = _NAME == "emulated"


def _device() -> torch.device:
    if IS_EMULATED:
        return load_emulator()
    if _NAME == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products; read when cuBLAS starts
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    return torch.device(_NAME, *([0] if _NAME == "cuda" else []))


DEVICE = _device()


@contextmanager
def accelerators_have_what_cuda_has() -> Iterator[None]:
    """On an emulated GPU, codecs by the CPU's loops, and host memory whose pages are locked, as on a GPU of CUDA's."""
    if not IS_EMULATED:
        yield
        return
    with (
        cpu_codecs(),
        patch("membench.backends.pinned.locks_pages", return_value=True),
        patch("membench.profiling.link.ACCELERATOR_BYTES", MIB),
        patch("membench.profiling.operators._TIMED_S", 0.0),  # operators are timed by the fewest runs
        patch("membench.profiling.issue._REPETITIONS", 1),
        patch("torch.cuda.cudart", return_value=Runtime()),
    ):
        yield


def start_plugin() -> None:
    """Give a process of `tests/helpers/emulator/plugin` what CUDA has until its end.

    Torch calls this when it is imported.
    """
    until_exit = ExitStack()
    until_exit.enter_context(accelerators_have_what_cuda_has())
    atexit.register(until_exit.close)


@contextmanager
def joined_processes() -> Iterator[None]:
    """Join the other processes by Gloo, in whose separate group an emulated GPU's collectives run, as in NCCL's."""
    with accelerators_have_what_cuda_has(), join("cpu", timeout_s=600):
        if IS_EMULATED:
            collect_by(dist.new_group())
        yield
        if DEVICE.type != "cpu":
            torch.accelerator.synchronize(DEVICE)


def backend_of(schedule: Schedule, chaos: Chaos | None = None, disk_folder: Path | None = None) -> TensorBackend:
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
