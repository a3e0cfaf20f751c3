"""The kernel that torch chooses for attention on a GPU, by architecture, torch's version and the program's switches.

The order and the conditions are those of torch's ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``
(`select_sdp_backend`) and ``sdp_utils_cpp.h``, read in September 2026; headers of the wheels of 2.14 and 2.15 were
compared. They are compared with what the installed torch chooses by `tests/capture/test_attention_choices.py`. What
differs between the torch versions that are allowed:

- Memory-efficient attention takes grouped keys, and fused kernels take one shared head of keys without being asked to,
  from 2.14 on (pytorch/pytorch#191085; in the headers of 2.14).
- cuDNN comes first on compute capability 9 and 10 where its version is above 9.15.0, which all wheels of 2.11 and later
  for CUDA 13 have (huggingface/transformers#48163).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.core.errors import MembenchError
from membench.core.libraries.torch_contexts import attention_switches
from membench.core.libraries.torch_devices import attention_order, torch_version

_LARGEST_HEAD = 256
"""Of flash attention."""

_WIDE_HEAD = 192
"""Size from which flash attention's backward pass has too little shared memory on an architecture's smaller cards."""

_ALIGNMENT_BITS = 128
"""Tensor cores' factors are read in units of so many bits."""

_CUDNN = 92600
"""Version of cuDNN in the wheel of torch 2.15, for a torch that has none of its own."""

_CUDNN_FIRST_ABOVE = 91500
_CUDNN_WIDE_HEADS_ABOVE = 92200
_CUDNN_LARGEST_DIMENSION = 65535
_NVIDIA_NOW = (5, 0), (12, 1)
"""Architectures of memory-efficient attention; flash attention and cuDNN begin at 8.0."""

_HALVES = (torch.float16, torch.bfloat16)


class AttentionKernel(Enum):
    """How attention is computed, in the order of `attention_switches`."""

    CUDNN = "CUDNN_ATTENTION"
    FLASH = "FLASH_ATTENTION"
    MEMORY_EFFICIENT = "EFFICIENT_ATTENTION"
    UNFUSED = "MATH"  # holds the scores of all pairs


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Arguments of ``scaled_dot_product_attention``.

    Attributes:
        query: (samples, heads, queries, head size).
        key, value: (samples, heads, keys, head size); of grouped attention, with fewer heads.
        mask: which pairs take part, or what is added to their scores.
        is_grouped: several heads of queries may share one of keys (``enable_gqa``).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    dropout: float = 0.0
    is_causal: bool = False
    is_grouped: bool = False

    @property
    def has_gradient(self) -> bool:
        """Whether the backward pass will need what a fused kernel keeps for it."""
        return torch.is_grad_enabled() and any(each.requires_grad for each in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        return self.query, self.key, self.value

    def is_of(self, *dtypes: torch.dtype) -> bool:
        """Return whether all tensors have one of these formats, and the same."""
        return self.query.dtype in dtypes and all(each.dtype is self.query.dtype for each in self.tensors)


def attention_kernel(call: AttentionCall, gpu: AnyGpu) -> AttentionKernel:
    """Return the kernel that torch chooses on a card, as the program has set torch's switches now.

    Raises:
        MembenchError: the program has switched off all kernels that could compute it.
    """
    architecture = gpu.architecture
    is_enabled = dict(zip(AttentionKernel, attention_switches(), strict=True))
    for kernel in _order(architecture):
        if is_enabled[kernel] and _CONDITIONS[kernel](call, architecture):
            return kernel
    allowed = ", ".join(kernel.value for kernel in AttentionKernel if is_enabled[kernel]) or "none"
    shapes = ", ".join(str(tuple(each.shape)) for each in call.tensors)
    raise MembenchError(
        "scaled_dot_product_attention has no available kernel on compute capability "
        f"{'.'.join(map(str, architecture))}: the program allows {allowed}, and torch takes none of them for "
        f"{call.query.dtype} of {shapes}{'' if call.mask is None else ' with a mask'}; allow SDPBackend.MATH as well, "
        "or leave torch.nn.attention.sdpa_kernel out"
    )


def _order(architecture: tuple[int, int]) -> list[AttentionKernel]:
    """Return the kernels in the order in which torch tries them."""
    names, is_default = attention_order()
    known = {kernel.value: kernel for kernel in AttentionKernel}
    order = [known[name] for name in names if name in known]
    if is_default and _prefers_cudnn(architecture):
        order.sort(key=lambda kernel: kernel is not AttentionKernel.CUDNN)
    return order


def _prefers_cudnn(architecture: tuple[int, int]) -> bool:
    """Follow `check_prefer_cudnn_attention`; a torch that was not built for CUDA stands for the one of CUDA 13."""
    is_depreciated = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") in ("1", "ON", "on", "true", "TRUE")
    is_of_cuda_12 = torch.version.cuda is not None and int(torch.version.cuda.split(".")[0]) < 13
    major, minor = architecture
    is_known = major in (9, 10) and (not is_of_cuda_12 or minor in (0, 3))
    return is_known and not is_depreciated and _cudnn_version() > _CUDNN_FIRST_ABOVE


def _cudnn_version() -> int:
    return (torch.backends.cudnn.version() if torch.version.cuda else None) or _CUDNN


def _may_be_cudnn(call: AttentionCall, architecture: tuple[int, int]) -> bool:
    if not (_has_four_dimensions(call) and (8, 0) <= architecture <= _NVIDIA_NOW[1]):
        return False
    queries, keys = call.query.shape[2], call.key.shape[2]
    is_deterministic = (
        torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
    )
    version = _cudnn_version()
    return (
        not is_deterministic
        and call.is_of(*_HALVES)
        and _is_mask_of_cudnn(call)
        and (call.dropout * 16).is_integer()
        and not (call.dropout and (queries == 1 or 91100 < version < 91400))
        and _has_rows(call, ignores_single=True)
        and _heads_match(call, takes_groups=True, same_heads=False)
        and max(call.query.shape[:2]) <= _CUDNN_LARGEST_DIMENSION
        and keys != 1
        and _are_heads_of_cudnn(call, architecture, version)
    )


def _are_heads_of_cudnn(call: AttentionCall, architecture: tuple[int, int], version: int) -> bool:
    sizes = size, of_value = call.query.shape[3], call.value.shape[3]
    if size % 8 or of_value % 8:
        return False
    if not (architecture == (9, 0) or architecture[0] == 10):
        return max(sizes) <= 128
    if version <= _CUDNN_WIDE_HEADS_ABOVE:
        return max(sizes) <= 128 or sizes == (192, 128)
    takes_gradient = max(sizes) <= 128 or sizes in ((192, 128), (256, 256))
    return max(sizes) <= 256 and (takes_gradient or not call.has_gradient)


def _is_mask_of_cudnn(call: AttentionCall) -> bool:
    mask = call.mask
    if mask is None:
        return True
    scores = (*call.query.shape[:3], call.key.shape[2])
    fits = all(each in (1, size) for each, size in zip(mask.shape[::-1], scores[::-1], strict=False))
    return not mask.requires_grad and mask.dim() in (2, 4) and fits


def _may_be_flash(call: AttentionCall, architecture: tuple[int, int]) -> bool:
    if not (_has_four_dimensions(call) and (8, 0) <= architecture <= _NVIDIA_NOW[1]):
        return False
    size = call.query.shape[3]
    is_small = (8, 6) <= architecture <= (8, 9) or architecture >= (12, 0)
    has_backward = size <= _WIDE_HEAD or (not call.dropout and size > 224)
    return (
        call.mask is None
        and call.is_of(*_HALVES)
        and size == call.key.shape[3] == call.value.shape[3] <= _LARGEST_HEAD
        and (has_backward or not (is_small and call.has_gradient))
        and not (call.is_causal and call.query.shape[2] != call.key.shape[2])
        and _heads_match(call, takes_groups=True)
        and _has_rows(call, ignores_single=True)
    )


def _may_be_memory_efficient(call: AttentionCall, architecture: tuple[int, int]) -> bool:
    if not (_has_four_dimensions(call) and _NVIDIA_NOW[0] <= architecture <= _NVIDIA_NOW[1]):
        return False
    is_ampere = architecture >= (8, 0)
    dtypes = (*_HALVES, torch.float32) if is_ampere else (torch.float16, torch.float32)
    size, of_value = call.query.shape[3], call.value.shape[3]
    unit = _unit(call, architecture)
    return (
        call.is_of(*dtypes)
        and size == call.key.shape[3]
        and not (size % unit or of_value % unit)
        and min(size, of_value) > 0
        and not (is_ampere and any(each.storage_offset() % unit for each in call.tensors))
        and _heads_match(call, takes_groups=torch_version() >= (2, 14))
        and _has_rows(call, ignores_single=False)
    )


def _unit(call: AttentionCall, architecture: tuple[int, int]) -> int:
    """Return what a head's elements must be a multiple of in memory-efficient attention (`minimum_gemm_alignment`)."""
    is_half = call.query.dtype in _HALVES
    has_tensor_cores = architecture >= (8, 0) or (architecture >= (7, 0) and is_half)
    smallest = 4 if architecture >= (8, 0) else 1
    return max(smallest, _ALIGNMENT_BITS // (16 if is_half else 32)) if has_tensor_cores else smallest


def _has_four_dimensions(call: AttentionCall) -> bool:
    return all(each.dim() == 4 for each in call.tensors)


def _has_rows(call: AttentionCall, *, ignores_single: bool) -> bool:
    """Return whether there are queries and keys, and the elements of a head, and of a row of the mask, lie together."""
    is_single = ignores_single and call.query.shape[3] == 1
    are_dense = is_single or all(each.stride(-1) == 1 for each in call.tensors)
    is_mask_dense = call.mask is None or call.mask.stride(-1) == 1
    return are_dense and is_mask_dense and 0 not in (call.query.shape[2], call.key.shape[2])


def _heads_match(call: AttentionCall, *, takes_groups: bool, same_heads: bool = True) -> bool:
    """Return whether a fused kernel takes the numbers of samples and heads (`check_batch_size_and_num_heads_dense`)."""
    (samples, heads), (of_key, keys), (of_value, values) = (each.shape[:2] for each in call.tensors)
    if not samples == of_key == of_value:
        return False
    if call.is_grouped and takes_groups:
        divides = keys > 0 and heads % keys == 0
        return divides and (keys == values if same_heads else values > 0 and heads % values == 0)
    shares_one = torch_version() >= (2, 14) and heads > 0 and keys == values == 1
    return heads == keys == values or shares_one


_CONDITIONS: dict[AttentionKernel, Callable[[AttentionCall, tuple[int, int]], bool]] = {
    AttentionKernel.CUDNN: _may_be_cudnn,
    AttentionKernel.FLASH: _may_be_flash,
    AttentionKernel.MEMORY_EFFICIENT: _may_be_memory_efficient,
    AttentionKernel.UNFUSED: lambda *_: True,
}
