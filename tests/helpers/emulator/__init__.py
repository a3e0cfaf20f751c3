"""An emulated GPU: a device of torch with the host's memory, threads as streams, and the CPU's kernels.

Everything between a program and the device is torch's own: dispatcher, guards, allocator's interface, events,
autograd's threads. So what a GPU would compute wrongly for lack of a wait is wrong here, too.
"""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from tests.helpers.emulator import emulated

DEVICE_TYPE = "emulated"

PLUGIN = str(Path(__file__).parent / "plugin")
"""A folder for the path of other processes of Python, in which torch then loads the device by itself."""


def load_emulator() -> torch.device:
    """Build the extension at first use, register the device for the rest of this process, and return it."""
    from torch.utils import cpp_extension  # which looks for a CUDA runtime, and takes time

    sources = sorted(Path(__file__).parent.glob("*.cpp"))
    cpp_extension.load(
        "membench_emulator", list(map(str, sources)), extra_cflags=["-O1", "-Wall"], is_python_module=False
    )
    torch.utils.rename_privateuse1_backend(DEVICE_TYPE)
    torch._register_device_module(DEVICE_TYPE, emulated)
    return torch.device(DEVICE_TYPE, 0)


class Runtime:
    """What `torch.cuda.cudart` returns, of the emulated device."""

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:  # noqa: N802
        torch.ops.emulator.lock(address, size_bytes)
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        torch.ops.emulator.unlock(address)
        return 0


def awaited_copies() -> int:
    """Return how many copies between host and device the host has waited for."""
    count: int = torch.ops.emulator.awaited_copies()
    return count


def is_locked(memory: Tensor) -> bool:
    """Return whether copies of host memory run while the host goes on."""
    found: bool = torch.ops.emulator.is_locked(memory.data_ptr())
    return found


def collect_by(group: dist.ProcessGroup) -> None:
    """Let a group's Gloo run the collectives of all groups."""
    torch.ops.emulator.collect_by(group.boxed())


def stall(time_s: float) -> None:
    """Keep the current stream busy for that long."""
    torch.ops.emulator.stall(time_s)


def delay_jobs(seed: int, longest_s: float) -> None:
    """Delay copies and kernels at random, each by up to that time; 0: none."""
    torch.ops.emulator.delay(seed, longest_s)
