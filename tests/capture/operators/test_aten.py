"""Outputs of operators as captured equal those of their kernels, for every layout of the arguments."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from membench.capture.operators.aten import argument_at, written_arguments
from membench.capture.operators.real_outputs import with_real_outputs
from membench.core.libraries.torch_internals import FakeTensorMode

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
def test_layouts_are_those_of_the_kernels(call: object, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert callable(call)
    operator, args = call(first, second)
    real = operator(*args)
    with FakeTensorMode():
        operator, args = call(first, second)
        claimed = with_real_outputs(operator, args, operator(*args))
    for one, other in zip(_tensors(real), _tensors(claimed), strict=True):
        assert one.stride() == other.stride()


def _predictions(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((4, 3), 0.5, dtype=dtype)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize(
    "loss", ["mse_loss", "smooth_l1_loss", "soft_margin_loss", "huber_loss", "binary_cross_entropy"]
)
def test_a_reduced_loss_has_the_memory_of_its_kernel(loss: str, reduction: int) -> None:
    operator = getattr(torch.ops.aten, loss).default
    between = (None,) if loss == "binary_cross_entropy" else ()
    real = operator(_predictions(), _predictions(), *between, reduction)
    with FakeTensorMode():
        args = (_predictions(), _predictions(), *between, reduction)
        claimed = with_real_outputs(operator, args, operator(*args))
    assert claimed.shape == real.shape
    assert claimed.untyped_storage().nbytes() == real.untyped_storage().nbytes()


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [(torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16)],
)
@pytest.mark.parametrize("name", ["native_batch_norm", "native_layer_norm", "native_group_norm"])
def test_statistics_have_the_precision_of_the_kernels(name: str, dtype: torch.dtype, weights: torch.dtype) -> None:
    def call() -> tuple[object, ...]:
        maps, weight = torch.ones(2, 4, 3, dtype=dtype), torch.ones(4, dtype=weights)
        return {
            "native_batch_norm": (maps, weight, weight, weight.clone(), weight.clone(), True, 0.1, 1e-5),
            "native_layer_norm": (maps.transpose(1, 2).contiguous(), [4], weight, weight, 1e-5),
            "native_group_norm": (maps, weight, weight, 2, 4, 3, 2, 1e-5),
        }[name]

    operator = getattr(torch.ops.aten, name).default
    real = operator(*call())
    with FakeTensorMode():
        args = call()
        claimed = with_real_outputs(operator, args, operator(*args))
    assert [one.dtype for one in real] == [one.dtype for one in claimed]


def test_what_an_operator_writes_may_be_named() -> None:
    source, target = torch.ones(3), torch.zeros(3)
    named = {"out": target}
    [written] = written_arguments(torch.ops.aten.div.out, (source, source), named)
    assert argument_at(written, (source, source), named) is target


def _tensors(output: object) -> tuple[Tensor, ...]:
    return output if isinstance(output, tuple) else (output,)  # type: ignore[return-value]
