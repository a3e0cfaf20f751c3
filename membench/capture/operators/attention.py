"""Scaled dot-product attention as PyTorch runs it on a GPU: the call of the kernel that it chooses there."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.capture.operators.attention_kernels import AttentionCall, AttentionKernel, attention_kernel
from membench.core.libraries.torch_devices import torch_version
from membench.core.libraries.torch_internals import (
    OpOverload,
    cudnn_attention,
    flash_attention,
    memory_efficient_attention,
    operator_schema,
    unfused_attention,
)

_ALIGNMENT = 8
"""Flash attention pads heads, and memory-efficient attention pads rows of a mask, to a multiple of so many elements."""

_BLOCK = 128
"""Queries of a block of FlashAttention-2 (Dao, 2023, Section 3.1: blocks of 64 or 128 queries)."""


def attention(
    gpu: AnyGpu,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute what ``torch.nn.functional.scaled_dot_product_attention`` does, by the kernel that a GPU would run.

    Raises:
        MembenchError: see `attention_kernel`.
    """
    is_unbatched = all(each.dim() == 3 for each in (query, key, value))
    if is_unbatched and torch_version() >= (2, 14):  # which adds the dimension that fused kernels want (its headers)
        mask = attn_mask if attn_mask is None or attn_mask.dim() != 3 else attn_mask.unsqueeze(0)
        query, key, value = (each.unsqueeze(0) for each in (query, key, value))
        return attention(gpu, query, key, value, mask, dropout_p, is_causal, scale, enable_gqa).squeeze(0)
    call = AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    kernel, has_gradient = attention_kernel(call, gpu), call.has_gradient
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        shut = torch.full((), -torch.inf, dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, 0.0, shut)
    chosen = dropout_p, is_causal
    match kernel:
        case AttentionKernel.CUDNN:
            return cudnn_attention(query, key, value, attn_mask, has_gradient, *chosen, False, scale=scale)[0]
        case AttentionKernel.FLASH:
            size, scale = query.shape[-1], 1 / sqrt(query.shape[-1]) if scale is None else scale
            query, key, value = (_padded(each) for each in (query, key, value))
            output = flash_attention(query, key, value, *chosen, False, scale=scale)[0]
            return output if output.shape[-1] == size else output[..., :size]
        case AttentionKernel.MEMORY_EFFICIENT:
            if attn_mask is not None:
                attn_mask = _padded(attn_mask)[..., : key.shape[2]].expand(*query.shape[:3], key.shape[2])
            return memory_efficient_attention(query, key, value, attn_mask, has_gradient, *chosen, scale=scale)[0]
    return unfused_attention(query, key, value, attn_mask, *chosen, scale=scale, enable_gqa=enable_gqa)[0]


def computed_share(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the share of all pairs of queries and keys that a kernel of attention computes; 1 for other operators.

    Causal kernels skip the blocks whose keys all follow their queries, and mask those on the diagonal (Dao,
    "FlashAttention-2", 2023, Section 3.1.1, which counts half of the pairs). The formulas of `torch.utils.flop_counter`
    count all.

    Args:
        args, kwargs: arguments of the call; queries and keys are (samples, heads, length, head size).
    """
    if not _is_fused(operator):
        return 1.0
    given = {**dict(zip(_names(operator), args, strict=False)), **kwargs}
    if not given.get("is_causal", False):
        return 1.0
    queries, keys = given["query"].shape[2], given["key"].shape[2]
    firsts = range(0, queries, _BLOCK)
    computed = sum(min(_BLOCK, queries - first) * min(keys, first + _BLOCK) for first in firsts)
    return computed / (queries * keys)


def with_all_heads(operator: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a call's arguments in which keys and values of attention, without data, have the queries' heads.

    Operations are counted by shapes, and the formulas of torch 2.11 refuse fewer heads.
    """
    names = _names(operator) if _is_fused(operator) else []
    if not {"query", "key", "value"} <= set(names[: len(args)]):
        return args
    heads = args[names.index("query")].shape[1]

    def widened(given: Tensor) -> Tensor:
        return torch.empty((given.shape[0], heads, *given.shape[2:]), device="meta")

    given = zip(names, args, strict=False)
    return tuple(widened(each) if name in ("key", "value") else each for name, each in given)


def _is_fused(operator: OpOverload) -> bool:
    return "scaled_dot_product" in str(operator) and operator.overloadpacket is not unfused_attention


def _names(operator: OpOverload) -> list[str]:
    return [argument.name for argument in operator_schema(operator).arguments]


def _padded(tensor: Tensor) -> Tensor:
    missing = -tensor.shape[-1] % _ALIGNMENT
    return pad(tensor, (0, missing)) if missing else tensor
