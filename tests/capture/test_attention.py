"""The kernel of attention that torch chooses on a GPU, and its call."""

import pytest
import torch
from torch import Tensor

from membench.capture.attention import AttentionKernel, attention, attention_kernel, computed_share
from membench.core.torch_internals import (
    FakeTensorMode,
    OpOverload,
    flash_attention,
    memory_efficient_attention,
    unfused_attention,
)

FLASH, EFFICIENT, UNFUSED = AttentionKernel.FLASH, AttentionKernel.MEMORY_EFFICIENT, AttentionKernel.UNFUSED


def tensors(
    dtype: torch.dtype, size: int = 64, keys: int = 16, heads: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.empty(2, 4, 16, size, dtype=dtype)
    return (
        query,
        torch.empty(2, heads, keys, size, dtype=dtype),
        torch.empty(2, heads, keys, size, dtype=dtype),
    )


@pytest.mark.parametrize(
    ("dtype", "size", "keys", "heads", "is_masked", "is_causal", "expected"),
    [
        (torch.float16, 64, 16, 4, False, False, FLASH),
        (torch.bfloat16, 256, 16, 4, False, True, FLASH),
        (torch.float16, 264, 16, 4, False, False, EFFICIENT),
        (torch.float16, 68, 16, 4, False, False, FLASH),  # padded
        (torch.float16, 68, 16, 4, True, False, UNFUSED),  # not aligned
        (torch.float16, 64, 16, 4, True, False, EFFICIENT),
        (torch.float16, 64, 32, 4, False, True, EFFICIENT),
        (torch.float16, 64, 16, 2, False, False, FLASH),
        (torch.float32, 64, 16, 4, False, True, EFFICIENT),
        (torch.float32, 66, 16, 4, False, False, UNFUSED),
        (torch.float32, 64, 16, 2, False, False, UNFUSED),
        (torch.float64, 64, 16, 4, False, False, UNFUSED),
    ],
)
def test_the_kernel_is_the_first_whose_conditions_hold(
    dtype: torch.dtype,
    size: int,
    keys: int,
    heads: int,
    is_masked: bool,
    is_causal: bool,
    expected: AttentionKernel,
) -> None:
    query, key, value = tensors(dtype, size, keys, heads)
    mask = torch.ones(16, keys, dtype=torch.bool) if is_masked else None
    found = attention_kernel(query, key, value, mask, is_causal=is_causal, is_grouped=heads != 4)
    assert found is expected


def test_three_dimensions_are_not_fused() -> None:
    query, key, value = (each[0] for each in tensors(torch.float16))
    assert attention_kernel(query, key, value, None, is_causal=False, is_grouped=False) is UNFUSED


def test_heads_that_are_broadcast_have_no_fused_kernel() -> None:
    query, key, value = tensors(torch.bfloat16, heads=1)
    assert attention_kernel(query, key, value, None, is_causal=True, is_grouped=False) is UNFUSED
    assert attention_kernel(query, key, value, None, is_causal=True, is_grouped=True) is FLASH


@pytest.mark.parametrize("size", [64, 68])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_result_has_the_shape_of_the_query(dtype: torch.dtype, is_masked: bool, size: int) -> None:
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        query, key, value = tensors(dtype, size)
        mask = torch.ones(16, 16, dtype=torch.bool) if is_masked else None
        output = attention(query, key, value, mask, 0.0)
    assert (output.shape, output.dtype, output.device.type) == (query.shape, dtype, "cuda")


def test_the_unfused_formula_gives_torchs_numbers() -> None:
    query, key, value = (torch.randn(2, 16, 8) for _ in range(3))
    mask = torch.rand(16, 16) > 0.5
    mask[:, 0] = True
    for chosen in (None, mask):
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, chosen)
        torch.testing.assert_close(attention(query, key, value, chosen), expected)


@pytest.mark.parametrize("operator", [flash_attention.default, memory_efficient_attention.default])
def test_a_causal_kernel_leaves_out_the_blocks_above_the_diagonal(operator: OpOverload) -> None:
    query = torch.empty(1, 1, 1024, 64, device="meta")
    assert computed_share(operator, (query,) * 3, {}) == 1
    # of 8 times 8 blocks, those below the diagonal and the 8 on it
    assert computed_share(operator, (query,) * 3, {"is_causal": True}) == 36 / 64


def test_a_causal_sequence_that_is_one_block_is_computed_whole() -> None:
    query = torch.empty(1, 1, 100, 64, device="meta")
    assert computed_share(flash_attention.default, (query, query, query, 0.0, True), {}) == 1


def test_the_unfused_formula_computes_all_scores() -> None:
    query = torch.empty(1, 1, 1024, 64, device="meta")
    arguments = (query, query, query, None, 0.0, True)
    assert computed_share(unfused_attention.default, arguments, {}) == 1
