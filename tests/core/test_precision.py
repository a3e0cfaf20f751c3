"""Precisions and dtypes."""

import pytest
import torch

from membench.core.precision import Precision


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


def test_other_dtypes_count_as_single_precision() -> None:
    assert {Precision.of_dtype(each) for each in (torch.float64, torch.int64)} == {Precision.FP32}
