"""An emulated GPU: a device of torch whose memory is the host's, whose streams are threads and whose kernels are the CPU's.

Everything between a program and the device is torch's own: dispatcher, guards, allocator's interface, events, autograd's
threads. So what a GPU would compute wrongly for lack of a wait is wrong here, too.
"""

from pathlib import Path

import torch

from tests.helpers import emulated

DEVICE_TYPE = "emulated"


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


def delay_jobs(seed: int, longest_s: float) -> None:
    """Delay copies and kernels at random, each by up to that time; 0: none."""
    torch.ops.emulator.delay(seed, longest_s)
