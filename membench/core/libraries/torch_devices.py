"""Torch's private API of kernels, libraries and allocations; see `torch_internals`."""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch._ops import OpOverload
from torch.cuda import _POOL_HANDLE
from torch.library import Library
from torch.nn.attention import SDPBackend

__all__ = [
    "FUSED_ON_CUDA",
    "GraphPool",
    "MemoryRecorder",
    "attention_order",
    "clear_cublas_workspaces",
    "composite_kernel",
    "convolution_kernel",
    "cudnn_batch_norm_reserve_bytes",
    "is_profiled",
    "keep_gpu_busy",
    "stand_in_for_cuda",
    "torch_version",
]

GraphPool = _POOL_HANDLE
"""Type of the name of a memory pool, as `torch.cuda.graph_pool_handle` returns it."""

keep_gpu_busy: Callable[[int], None] = torch.cuda._sleep
"""Issue a kernel to the current stream that spins for that many cycles of the GPU's clock."""

_ALLOCATIONS_ONLY = ProfilerConfig(
    ProfilerState.CPU,
    report_input_shapes=False,
    profile_memory=True,
    with_stack=False,
    with_flops=False,
    with_modules=False,
    experimental_config=_ExperimentalConfig(),
)


def convolution_kernel(images: Tensor, weight: Tensor, *geometry: Any, bias_sizes: list[int] | None = None) -> str:
    """Return the name of the kernel with which torch computes a convolution, ``"Slow2d"``.

    Args:
        geometry: stride, padding, dilation, transposed, output padding and groups, as ``aten.convolution`` takes them.
    """
    return torch._C._select_conv_backend(images, weight, None, *geometry, bias_sizes).name


def cudnn_batch_norm_reserve_bytes(images: Tensor) -> int:
    """Return the bytes that cuDNN's batch norm reserves in training for its backward; needs a GPU."""
    return int(torch._C._get_cudnn_batch_norm_reserve_space_size(images, True))  # type: ignore[attr-defined]


def clear_cublas_workspaces() -> None:
    """Give back the workspaces that cuBLAS keeps for each stream."""
    torch._C._cuda_clearCublasWorkspaces()


_CUDA, _META = 1, 14
"""Numbers of `c10::DeviceType` (``c10/core/DeviceType.h``)."""
_LIBRARY = {"linux": "libc10.so", "darwin": "libc10.dylib"}


FUSED_ON_CUDA = ("_fused_rms_norm", "mish_backward", "silu_backward")
"""Operators of torch that have a kernel on CUDA, and consist of others for a device that has none."""


@cache
def stand_in_for_cuda() -> Library | None:
    """Let a torch that was not built for CUDA take fake tensors that are on CUDA, as a build for CUDA does.

    Returns:
        What holds the kernels that it stands in for, which never run: autograd takes an operator apart, before anything
        sees it, where its device has no kernel of it. None of a build for CUDA.
    """
    if torch.backends.cuda.is_built():
        return None
    _guard_cuda()
    kernels = Library("aten", "IMPL")
    for name in FUSED_ON_CUDA:
        kernels.impl(name, _not_run, "CUDA")
    return kernels


def _not_run(*_: Any) -> None:
    raise NotImplementedError("this torch was not built for CUDA")


def _guard_cuda() -> None:
    """Set what selects a device of CUDA.

    Methods of tensors, indexing among them, select the tensor's device first, for which such a build has nothing to
    call. `FakeTensorMode` replaces what is called by what does nothing (`c10::impl::ensureCUDADeviceGuardSet`) where
    there is no GPU, but only if there is something; so it gets that of the device `meta`.
    """
    if sys.platform not in _LIBRARY:
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / _LIBRARY[sys.platform]))
    guards = ctypes.c_void_p.in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    guard_of_meta = (ctypes.c_void_p * (_META + 1)).from_address(ctypes.addressof(guards))[_META]
    register = library["_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"]
    register.argtypes, register.restype = (ctypes.c_int8, ctypes.c_void_p), None
    register(_CUDA, guard_of_meta)
    torch._C._ensureCUDADeviceGuardSet()


_ATTENTION_ORDER = torch._C._get_sdp_priority_order()
"""As torch starts, before a program or the first attention on a GPU has changed it."""


def attention_order() -> tuple[list[str], bool]:
    """Return `SDPBackend`'s names in the order in which torch tries them, and whether that is its first order."""
    order = torch._C._get_sdp_priority_order()
    names = {each.value: name for name, each in SDPBackend.__members__.items()}
    return [names[number] for number in order], order == _ATTENTION_ORDER


@cache
def composite_kernel(operator: OpOverload) -> Callable[..., Any] | None:
    """Return the function in which an operator calls others below autograd, None where CUDA or nothing has one."""
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, operator.name())
    if has_kernel("CUDA") or not has_kernel("CompositeExplicitAutograd"):
        return None
    return partial(operator._op_dk, DispatchKey.CompositeExplicitAutograd)


def torch_version() -> tuple[int, int]:
    """Return major and minor version of the installed torch, ``(2, 15)``."""
    major, minor, *_ = torch.__version__.split(".")
    return int(major), int(minor)


is_profiled: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""Return whether a profiler runs in this thread."""


class MemoryRecorder:
    """Allocations of several threads on one clock, by torch's CPU allocator.

    What was allocated before, or by a thread that is not recorded, is left out. By autograd's first profiler:
    `torch.profiler` starts libkineto, which prints to the terminal and ends a profile that runs in the process already.
    """

    def __init__(self) -> None:
        self._of_threads: list[Any] = []  # lists of raw events

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record this thread in a block; no profiler may run in it."""
        torch._C._autograd._enable_profiler_legacy(_ALLOCATIONS_ONLY)
        try:
            yield
        finally:
            self._of_threads += torch._C._autograd._disable_profiler_legacy()

    def changes_bytes(self) -> list[int]:
        """Return bytes allocated or, negative, freed, in the order of time."""
        events = [event for thread in self._of_threads for event in thread]
        changes = [event for event in events if event.kind() == "memory_alloc"]
        changes.sort(key=events[0].cpu_elapsed_us)
        return [event.cpu_memory_usage() for event in changes]
