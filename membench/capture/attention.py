"""Scaled dot-product attention as PyTorch runs it on a GPU: the fused kernel that it chooses there, and that kernel's call.

The order and the conditions are those of torch's ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``
(`select_sdp_backend`) on Ampere and later: flash attention, memory-efficient attention, the unfused formula. cuDNN's kernel,
which torch prefers on Hopper, keeps what flash attention keeps, and is traced as that.
"""

from enum import Enum
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from membench.core.torch_internals import (
    OpOverload,
    flash_attention,
    memory_efficient_attention,
    operator_schema,
    unfused_attention,
)

FLASH_HEAD_SIZE = 256
"""The largest head of flash attention."""

_ALIGNMENT = 8
"""Flash attention pads heads, and memory-efficient attention pads rows of a mask, to a multiple of so many elements."""

_ALIGNMENT_BYTES = 16
"""Memory-efficient attention reads heads in units of so many bytes."""

_BLOCK = 128
"""Queries of a block of FlashAttention-2 (Dao, 2023, Section 3.1: blocks of 64 or 128 queries)."""


class AttentionKernel(Enum):
    """How attention is computed."""

    FLASH = "flash"
    MEMORY_EFFICIENT = "memory efficient"
    UNFUSED = "unfused"  # holds the scores of all pairs


def attention_kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, is_causal: bool, is_grouped: bool
) -> AttentionKernel:
    """Return the kernel that torch chooses.

    Args:
        query: (samples, heads, queries, head size).
        key, value: (samples, heads, keys, head size); of grouped attention, with fewer heads.
        mask: which pairs take part, or what is added to their scores.
    """
    tensors = (query, key, value)
    if any(each.dim() != 4 or not each.numel() or each.stride(-1) != 1 for each in tensors):
        return AttentionKernel.UNFUSED
    if not is_grouped and (query.shape[:2] != key.shape[:2] or key.shape[:2] != value.shape[:2]):
        return AttentionKernel.UNFUSED  # broadcast over samples or heads
    is_square = query.shape[2] == key.shape[2]
    if (
        mask is None
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[3] == key.shape[3] == value.shape[3] <= FLASH_HEAD_SIZE
        and (is_square or not is_causal)
    ):
        return AttentionKernel.FLASH
    unit = _ALIGNMENT_BYTES // query.itemsize
    if (
        query.dtype is not torch.float64
        and not is_grouped
        and query.shape[3] == key.shape[3]
        and not (query.shape[3] % unit or value.shape[3] % unit)
    ):
        return AttentionKernel.MEMORY_EFFICIENT
    return AttentionKernel.UNFUSED


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute what ``torch.nn.functional.scaled_dot_product_attention`` does, by the kernel that a GPU would run."""
    kernel = attention_kernel(query, key, value, attn_mask, is_causal=is_causal, is_grouped=enable_gqa)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        shut = torch.full((), -torch.inf, dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, 0.0, shut)
    if kernel is AttentionKernel.FLASH:
        size, scale = query.shape[-1], 1 / sqrt(query.shape[-1]) if scale is None else scale
        query, key, value = (_padded(each) for each in (query, key, value))
        output = flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return output if output.shape[-1] == size else output[..., :size]
    if kernel is AttentionKernel.MEMORY_EFFICIENT:
        if attn_mask is not None:
            attn_mask = _padded(attn_mask)[..., : key.shape[2]].expand(*query.shape[:3], key.shape[2])
        has_gradient = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        return memory_efficient_attention(
            query, key, value, attn_mask, has_gradient, dropout_p, is_causal, scale=scale
        )[0]
    return unfused_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def computed_share(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the share of all pairs of queries and keys that a kernel of attention computes; 1 for other operators.

    Causal kernels skip the blocks whose keys all follow their queries, and mask those on the diagonal (Dao, "FlashAttention-2", 2023,
    Section 3.1.1, which counts half of the pairs). The formulas of `torch.utils.flop_counter` count all.

    Args:
        args, kwargs: of the call; queries and keys are (samples, heads, length, head size).
    """
    if "scaled_dot_product" not in str(operator) or operator.overloadpacket is unfused_attention:
        return 1.0
    names = [argument.name for argument in operator_schema(operator).arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if not given.get("is_causal", False):
        return 1.0
    queries, keys = given["query"].shape[2], given["key"].shape[2]
    firsts = range(0, queries, _BLOCK)
    computed = sum(min(_BLOCK, queries - first) * min(keys, first + _BLOCK) for first in firsts)
    return computed / (queries * keys)


def _padded(tensor: Tensor) -> Tensor:
    missing = -tensor.shape[-1] % _ALIGNMENT
    return pad(tensor, (0, missing)) if missing else tensor
