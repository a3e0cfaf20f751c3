"""What capture says of an operator's output must be what its kernel returns, whatever the layout of its arguments."""

from itertools import permutations

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from membench.capture.operators import with_real_outputs

LAYOUTS = list(permutations(range(4)))


def _maps(layout: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a 3 x 3 x 3 x 3 tensor whose dimensions lie in memory in this order."""
    return torch.ones(3, 3, 3, 3, dtype=dtype).permute(*layout)


def _dropout_backward(gradient: tuple[int, ...], other: tuple[int, ...]) -> tuple[object, tuple[object, ...]]:
    return torch.ops.aten.native_dropout_backward.default, (_maps(gradient), _maps(other, torch.bool), 2.0)


def _batch_norm(first: tuple[int, ...], _: tuple[int, ...]) -> tuple[object, tuple[object, ...]]:
    statistics = (torch.ones(3), torch.ones(3), torch.zeros(3), torch.ones(3))
    return torch.ops.aten.native_batch_norm.default, (_maps(first), *statistics, True, 0.1, 1e-5)


@pytest.mark.parametrize("call", [_dropout_backward, _batch_norm])
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("second", [LAYOUTS[0], LAYOUTS[-1]])
def test_layouts_are_the_kernels(call: object, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert callable(call)
    operator, args = call(first, second)
    real = operator(*args)
    with FakeTensorMode():
        operator, args = call(first, second)
        claimed = with_real_outputs(operator, args, operator(*args))
    for one, other in zip(_tensors(real), _tensors(claimed), strict=True):
        assert one.stride() == other.stride()


def _tensors(output: object) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)  # type: ignore[return-value]
