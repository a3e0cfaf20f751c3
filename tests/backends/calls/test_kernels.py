"""Kernels that replace ATen's on the CPU: the same bits and layouts, without memory beyond the outputs."""

import pytest
import torch
from torch import Tensor

from membench.backends.calls.kernels import find_kernel
from membench.core.graph.call import Call
from membench.execution.measurement import cpu_peak_bytes

aten = torch.ops.aten
CPU = torch.device("cpu")
DROPOUT = find_kernel(Call("aten.native_dropout.default", (), (), ()), CPU)
BACKWARD = find_kernel(Call("aten.native_dropout_backward.default", (), (), ()), CPU)


def bits(tensor: Tensor) -> tuple[tuple[int, ...], bytes]:
    return tensor.stride(), bytes(tensor.contiguous().flatten().view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("probability", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 0, 2, 1)])
def test_dropout_has_the_bits_and_layout_of_its_operators(
    dtype: torch.dtype, probability: float, order: tuple[int, ...]
) -> None:
    activation, gradient = (torch.randn(2, 4, 3, 6, dtype=dtype).permute(order) for _ in range(2))
    torch.manual_seed(0)
    expected, mask = aten.native_dropout.default(activation, probability, True)
    torch.manual_seed(0)
    output, own_mask = DROPOUT(activation, probability, True)
    assert bits(output) == bits(expected) and bits(own_mask) == bits(mask)
    for each in (gradient, torch.randn((), dtype=dtype).expand(gradient.shape)):
        expected = aten.native_dropout_backward.default(each, mask, 1.25)
        assert bits(BACKWARD(each, mask, 1.25)) == bits(expected)


def test_dropout_takes_no_memory_beyond_its_outputs() -> None:
    activation = torch.randn(1000)
    _, mask = DROPOUT(activation, 0.5, True)
    results = []
    peak_bytes = cpu_peak_bytes(lambda: results.append(DROPOUT(activation, 0.5, True)))
    assert peak_bytes <= activation.nbytes + mask.nbytes + 16  # the scale
    assert cpu_peak_bytes(lambda: results.append(BACKWARD(activation, mask, 2.0))) <= activation.nbytes + 16
