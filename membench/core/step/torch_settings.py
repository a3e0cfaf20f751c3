"""Settings that a program makes in torch: what a prediction reads, and what it names because it does not predict that.

Read, where a step is captured: TF32 of products and of convolutions (unless the step has a precision), the default
dtype and device, gradients on or off, the fast paths of `nn.MultiheadAttention`. Read, where kernels are chosen: those
of attention. Named by `unpredicted`, each in a sentence: all others that change the time or the memory of a step.
Without effect on either, and not named: the number of CPU threads, caches, and what torch prints or checks.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from membench.core.errors import MembenchError
from membench.core.graph.task_graph import Kind
from membench.core.libraries.torch_contexts import has_saved_tensor_hooks
from membench.core.libraries.torch_internals import allocator_settings, autograd_has_threads

_ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": "workspaces of cuBLAS have their default size",
    "CUDA_LAUNCH_BLOCKING": "kernels are started without waiting for each",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "memory is that of the caching allocator",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "products run in TF32 where torch.backends says so",
    "NVIDIA_TF32_OVERRIDE": "products run in TF32 where torch.backends says so",
}
"""Variables of the environment, and what is predicted whatever they are."""

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def rounded_to_tf32() -> frozenset[Kind]:
    """Return the kinds of products whose factors torch rounds to TF32 on a GPU that has it, as its switches are set.

    They are `torch.backends.cuda.matmul.fp32_precision` and `torch.backends.cudnn.conv.fp32_precision`, which
    ``allow_tf32``, `torch.set_float32_matmul_precision` and the ones above them set too.
    """
    switches: Mapping[Kind, Any] = {
        Kind.LINEAR: torch.backends.cuda.matmul,
        Kind.CONVOLUTION: torch.backends.cudnn.conv,  # type: ignore[attr-defined]
    }
    return frozenset(kind for kind, switch in switches.items() if switch.fp32_precision == "tf32")


def check_no_autocast() -> None:
    """Refuse a prediction within `torch.autocast`, which does not say of which part of a step it is.

    Raises:
        MembenchError: autocast is on.
    """
    found = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
    if found:
        raise MembenchError(
            f"the call is within torch.autocast({found[0]!r}), but a prediction has a precision of its own; leave "
            "autocast out, and pass precision='amp_bf16' or 'amp_fp16'"
        )


def unpredicted(*, trains: bool, convolves: bool, allocates_as_described: bool) -> tuple[str, ...]:
    """Return a sentence for each setting here that changes a step's time or memory and is not predicted.

    Args:
        trains: the step has a backward pass.
        convolves: it has convolutions.
        allocates_as_described: the allocator's settings were given to the prediction.
    """
    found = [*_of_kernels(convolves=convolves), *_of_environment()]
    if trains:
        found += _of_autograd()
    own = next(filter(None, (*map(os.environ.get, _ALLOCATOR), allocator_settings())), "")
    if own and not allocates_as_described:
        found.append(f"The allocator's settings {own!r} of this process are not predicted: pass allocator={own!r}.")
    if torch.cuda.is_initialized() and torch.cuda.get_per_process_memory_fraction() < 1:
        found.append(
            "torch.cuda.set_per_process_memory_fraction is not predicted: the step may have all of the device's memory."
        )
    return tuple(found)


def _of_kernels(*, convolves: bool) -> Iterator[str]:
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    if convolves and not cudnn.enabled:
        yield "torch.backends.cudnn.enabled = False is not predicted: convolutions are priced as cuDNN's."
    if convolves and cudnn.benchmark:
        yield (
            "torch.backends.cudnn.benchmark = True is predicted in part: unused memory is given back at each new "
            "convolution, but convolutions have the times and workspaces of cuDNN's default choice."
        )
    if convolves and cudnn.deterministic:
        yield "torch.backends.cudnn.deterministic = True is not predicted: convolutions are priced as without it."
    if torch.are_deterministic_algorithms_enabled():
        filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        also = ", and memory as not filled before use" if filled else ""
        yield f"torch.use_deterministic_algorithms(True) is not predicted: kernels are priced as without it{also}."
    if not products.allow_fp16_reduced_precision_reduction:
        yield "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False is not predicted."
    if not products.allow_bf16_reduced_precision_reduction:
        yield "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False is not predicted."
    if products.allow_fp16_accumulation:
        yield (
            "torch.backends.cuda.matmul.allow_fp16_accumulation = True is not predicted: products have the rate of "
            "sums in single precision."
        )


def _of_autograd() -> Iterator[str]:
    if torch.is_anomaly_enabled():
        yield "torch.autograd.set_detect_anomaly(True) is not predicted: the step is without its checks."
    if not autograd_has_threads():
        yield (
            "torch.autograd.set_multithreading_enabled(False) is not predicted: the backward pass has a thread, and "
            "cuBLAS's workspace, of its own."
        )
    if has_saved_tensor_hooks():
        yield (
            "Hooks on saved tensors around the call, such as torch.autograd.graph.save_on_cpu, are not predicted: "
            "what the backward pass needs stays on the device; choose a strategy that offloads, such as vdnn_all."
        )


def _of_environment() -> Iterator[str]:
    for name, instead in _ENVIRONMENT.items():
        if os.environ.get(name, "") not in ("", "0"):
            yield f"{name}={os.environ[name]} is not predicted: {instead}."
