"""Precisions and dtypes."""

import pytest
import torch

from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.FP16])
def test_a_precision_is_that_of_its_dtype(precision: Precision) -> None:
    assert precision.dtype is not None
    assert Precision.of_dtype(precision.dtype) is precision
    assert precision.autocast_dtype is None


def test_tf32_has_single_precision_in_memory() -> None:
    assert Precision.TF32.dtype is torch.float32


@pytest.mark.parametrize("precision", [Precision.AMP_BF16, Precision.AMP_FP16])
def test_autocast_leaves_weights_alone(precision: Precision) -> None:
    assert precision.dtype is None
    assert precision.autocast_dtype is not None and precision.autocast_dtype.itemsize == 2


def test_numbers_of_8_bits_are_those_of_products_alone() -> None:
    assert {Precision.of_dtype(each) for each in (torch.float8_e4m3fn, torch.float8_e5m2)} == {Precision.FP8}
    assert Precision.FP8.dtype is Precision.INT8.dtype is None
    assert Precision.of_step("bf16") is Precision.BF16
    with pytest.raises(MembenchError, match="convert_to_float8_training"):
        Precision.of_step("fp8")
    with pytest.raises(MembenchError, match="precision is not int4, which only weights have: quantize the module"):
        Precision.of_step("int4")
    with pytest.raises(MembenchError, match="precision is not int8, which only weights have"):
        Precision.of_step("int8")
    with pytest.raises(MembenchError, match="precision 'fp4x' is not known.* are: fp32, .*, amp_fp16"):
        Precision.of_step("fp4x")


def test_other_dtypes_count_as_single_precision() -> None:
    assert {Precision.of_dtype(each) for each in (torch.float64, torch.int64)} == {Precision.FP32}
