"""Readings of NVIDIA's management library: this process's memory on a GPU, other processes, energy, driver.

A driver may refuse a reading (in a container, in a virtual machine): then its value is None, and it has a reason.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch  # takes seconds, which listing GPUs does not need

T = TypeVar("T")


@dataclass(frozen=True)
class Reading:
    """A number from the driver, or None and the reason."""

    value: float | None
    reason: str = ""


@dataclass(frozen=True)
class ProcessReading:
    """Processes on a GPU.

    Attributes:
        process_bytes: device memory of this process, including its CUDA context.
        others: number of other processes that use the GPU.
    """

    process_bytes: Reading
    others: Reading


@dataclass(frozen=True)
class PciLink:
    """The widest PCI Express link that a GPU and its slot allow; None where the driver does not report it."""

    generation: int | None
    lanes: int | None


@dataclass(frozen=True)
class Gpu:
    """A GPU by UUID, as ``CUDA_VISIBLE_DEVICES`` accepts it, and by product name."""

    uuid: str
    name: str


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that a process started now would see; none without a driver."""

    def read(nvml: Any) -> list[Gpu]:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return [Gpu(nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)) for handle in handles]

    every = _query(read)[0] or []
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return every
    return [
        gpu
        for word in wanted.split(",")
        for index, gpu in enumerate(every)
        if word == str(index) or (word and gpu.uuid.startswith(word))
    ]


def driver_version() -> str | None:
    """Return the driver's version, or None without a driver."""
    version, _ = _query(lambda nvml: str(nvml.nvmlSystemGetDriverVersion()))
    return version


def read_processes(device: "torch.device") -> ProcessReading:
    """Return this process's memory on a GPU and the number of other processes there."""

    def read(nvml: Any) -> list[tuple[int, int | None]]:
        handle = _handle(nvml, device)
        running = [*nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return [(process.pid, process.usedGpuMemory) for process in running]

    processes, reason = _query(read)
    if processes is None:
        return ProcessReading(Reading(None, reason), Reading(None, reason))
    own = [used for pid, used in processes if pid == os.getpid()]
    others = Reading(sum(pid != os.getpid() for pid, _ in processes))
    if not own:
        reason = "the driver does not list this process; its process numbers differ here"
        return ProcessReading(Reading(None, reason), Reading(None, reason) if processes else others)
    if own[0] is None:
        return ProcessReading(Reading(None, "the driver does not report a process's memory here"), others)
    return ProcessReading(Reading(own[0]), others)


def read_pci_link(device: "torch.device") -> PciLink:
    """Return the link's generation and lanes; while a GPU is idle, it may use fewer of them."""

    def read(nvml: Any) -> PciLink:
        handle = _handle(nvml, device)
        generation = nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)
        return PciLink(generation, nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))

    return _query(read)[0] or PciLink(None, None)


def read_energy_j(device: "torch.device") -> Reading:
    """Return the joules that the GPU has used since the driver started."""
    value, reason = _query(
        lambda nvml: nvml.nvmlDeviceGetTotalEnergyConsumption(_handle(nvml, device)) * 1e-3  # millijoules
    )
    return Reading(value, reason)


def _handle(nvml: Any, device: "torch.device") -> Any:
    """Return the handle of torch's device, found by UUID: the library may order GPUs differently."""
    import torch

    return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def _query(read: Callable[[Any], T]) -> tuple[T | None, str]:
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            return read(pynvml), ""
        finally:
            pynvml.nvmlShutdown()
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    except Exception as error:  # the base of the library's errors exists only with the library
        return None, f"{type(error).__name__}: {error}"
