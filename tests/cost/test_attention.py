"""Memory-efficient attention is priced as the kernel that it is."""

import pytest
import torch

from membench.core import configuration
from membench.core.graph.call import Value
from membench.core.graph.precision import Precision
from membench.cost.attention import efficient_kernel, efficient_ops_per_s
from membench.cost.kernels import Family, Kernel
from membench.cost.rates import kernel_time_s

RATES = configuration.load("framework", "pytorch").efficiency.kernels
OPERATOR = "_scaled_dot_product_efficient_attention"


def heads(size: int, of_value: int) -> list[Value]:
    shapes = ((1, 2, 16, size), (1, 2, 16, size), (1, 2, 16, of_value), (1, 2, 16, 4096))  # a mask comes last
    return [Value(0, torch.float16, shape, (1, 1, 1, 1), 0) for shape in shapes]


@pytest.mark.parametrize(
    ("name", "size", "of_value", "expected"),
    [
        (OPERATOR, 128, 128, "forward"),
        (OPERATOR, 192, 128, "wide_forward"),
        (f"{OPERATOR}_backward", 64, 64, "backward"),
        (f"{OPERATOR}_backward", 192, 128, "wide_backward"),
        ("_scaled_dot_product_flash_attention", 192, 128, ""),
    ],
)
def test_a_call_has_the_kernel_of_its_heads(name: str, size: int, of_value: int, expected: str) -> None:
    assert efficient_kernel(name, heads(size, of_value)) == expected


@pytest.mark.parametrize(
    ("card", "kernel", "precision", "published_ops_per_s"),
    [
        ("h100", "forward", Precision.FP16, 144.8e12),  # microsoft/onnxruntime#21629
        ("a100_80gb_sxm", "backward", Precision.FP16, 65.7e12),  # pytorch/pytorch#101847
        ("a100_80gb_sxm", "forward", Precision.FP32, 46.6e12),  # facebookresearch/xformers#587
    ],
)
def test_the_rates_are_the_published_ones(
    card: str, kernel: str, precision: Precision, published_ops_per_s: float
) -> None:
    _, reached = efficient_ops_per_s(kernel, precision, RATES, configuration.load("device", card))
    assert reached == pytest.approx(published_ops_per_s, rel=0.02)


def test_a_turing_card_reaches_its_published_share_of_the_peak() -> None:
    peak, reached = efficient_ops_per_s("forward", Precision.FP16, RATES, configuration.load("device", "t4"))
    assert reached / peak == pytest.approx(0.66 / 2.19, rel=0.02)  # Dao-AILab/flash-attention#2379


def test_a_card_without_tf32_multiplies_single_precision_by_its_own_units() -> None:
    card = configuration.load("device", "v100")
    _, reached = efficient_ops_per_s("forward", Precision.FP32, RATES, card)
    assert reached == pytest.approx(card.arithmetic_ops_per_s * RATES.attention * RATES.single_product)


def test_single_precision_takes_the_published_time() -> None:
    kernel = Kernel(Family.ATTENTION, Precision.FP32, 0, 10**12, attention_kernel="forward")
    time_s = kernel_time_s(kernel, RATES, configuration.load("device", "a100_80gb_sxm"))
    assert time_s == pytest.approx(10**12 / 46.4e12, rel=0.02)
