"""Kernels of operators on lists: as many as PyTorch's multi-tensor kernels have room for."""

import pytest
import torch

from membench.capture.operators.foreach import kernel_launches

ADD = torch.ops.aten._foreach_add_.List
SCALE = torch.ops.aten._foreach_mul_.Scalar
CHUNK = 65_536


def tensors(count: int, elements: int) -> list[torch.Tensor]:
    return [torch.empty(elements, device="meta") for _ in range(count)]


@pytest.mark.parametrize(
    ("count", "elements", "kernels"),
    [
        (1, 10, 1),
        (110, 10, 1),
        (111, 10, 2),
        (1, 320 * CHUNK, 1),
        (1, 320 * CHUNK + 1, 2),
        (10, 64 * CHUNK, 2),
        (3, 200 * CHUNK, 2),
    ],
)
def test_a_kernel_has_room_for_some_tensors_and_chunks(count: int, elements: int, kernels: int) -> None:
    assert kernel_launches(SCALE, (tensors(count, elements), 2.0), {}) == kernels


def test_more_lists_leave_room_for_fewer_tensors() -> None:
    assert kernel_launches(ADD, (tensors(64, 10), tensors(64, 10)), {}) == 1
    assert kernel_launches(ADD, (tensors(65, 10), tensors(65, 10)), {}) == 2


def test_other_operators_have_one_kernel() -> None:
    [one] = tensors(1, 10**9)
    assert kernel_launches(torch.ops.aten.add_.Tensor, (one, one), {}) == 1
    assert kernel_launches(torch.ops.aten.cat.default, (tensors(500, 10),), {}) == 1
