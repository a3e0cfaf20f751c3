"""Device memory that CUDA's libraries request through PyTorch's allocator: workspaces of convolutions and of products.

cuBLAS: PyTorch (since 1.12) gives each handle a workspace of its default size at the handle's first product, and keeps
it: the one that ``CUBLAS_WORKSPACE_CONFIG`` would set. Autograd's thread has a handle of its own, so that a training
holds two.

cuDNN: which algorithms its heuristics choose is not published. The choice below was made on four measurements per card
of ResNet-18 (SchedTune's rows, fp32): on Volta and Turing, whose single precision has no tensor cores, peaks follow
from Winograd's non-fused algorithm wherever it applies, on Kepler and on cards with TF32 from algorithms without a
workspace. Other cards and precisions are assumed to be like the latter. Copies of layout: `membench.cost.layouts`.
"""

from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind, Task
from membench.core.hardware.device import DeviceProfile
from membench.core.units import KIB, MIB
from membench.cost.convolution import ConvolutionAlgorithm, algorithm_work
from membench.cost.layouts import conversions, has_kernels, weight_gradient_copies_bytes

SINGLE = (Precision.FP32, Precision.TF32)
"""Precisions whose tensors are in single precision; a card without TF32 runs both alike."""


def convolution_workspace_bytes(task: Task, device: DeviceProfile) -> int:
    """Return the workspace of a convolution or of its gradients as cuDNN runs it on a device; 0 for other tasks.

    Not that of three dimensions: `layout_copies_bytes`.
    """
    if task.convolution is None or task.precision not in SINGLE or not _has_winograd(device):
        return weight_gradient_copies_bytes(task, device)
    work = algorithm_work(ConvolutionAlgorithm.WINOGRAD, task.convolution, task.gradient_of)
    return work.workspace_bytes if work else 0


def layout_copies_bytes(task: Task, device: DeviceProfile) -> int:
    """Return the most that cuDNN holds at once of a 3-D convolution's tensors in another layout, else 0."""
    copied = conversions(task.call)
    return max(copied) if task.call and copied and has_kernels(task.call, device) else 0


def product_workspace_bytes(device: DeviceProfile) -> int:
    """Return a cuBLAS handle's workspace: 32 MiB on Hopper and data-center Blackwell, else ``:4096:2:16:8``.

    The latter is two buffers of 4096 KiB and eight of 16 KiB. Both are from PyTorch's CUDA source,
    ``CublasHandlePool.cpp``: 32 MiB for capability 9.0 since version 2.0, and for 10.x since 2026 (pytorch#175344).
    That change gave them to GeForce cards of 12.x as well, for which the size of earlier versions is counted here.

    On an H200, torch 2.11 was measured to keep 34,603,008 bytes for a handle: these 32 MiB, and 1 MiB of cuBLASLt,
    which is not counted because older versions free it.
    """
    capability = device.compute_capability
    if capability is not None and 9 <= capability < 11:
        return 32 * MIB
    return 2 * 4096 * KIB + 8 * 16 * KIB


def has_product(task: Task) -> bool:
    """Return whether a task runs a product of matrices by cuBLAS."""
    return task.kind is Kind.LINEAR


def _has_winograd(device: DeviceProfile) -> bool:
    """Return whether a device is of Volta or Turing or, if unknown, has tensor cores but none for TF32."""
    if device.compute_capability is not None:
        return 7 <= device.compute_capability < 8
    return Precision.FP16 in device.precision_ops_per_s and Precision.TF32 not in device.precision_ops_per_s
