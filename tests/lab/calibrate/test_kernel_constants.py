"""Constants of single kernels: the fit finds those behind times, and leaves a chip out."""

from dataclasses import replace

import pytest

from membench.core import configuration
from membench.core.graph.precision import Precision
from membench.core.hardware.efficiency import KernelRates
from membench.cost.kernels import Family, Kernel
from membench.cost.products import Product
from membench.lab.calibrate.kernel_constants import CONSTANTS, fit_constants, is_same_chip, without_chip
from membench.lab.calibrate.measured_kernels import MeasuredKernel

RATES: KernelRates = configuration.load("framework", "pytorch").efficiency.kernels


def measured(rates: KernelRates) -> list[MeasuredKernel]:
    """Kernels with the times that these rates give them."""
    norm = Kernel(Family.NORMALIZATION, Precision.FP32, 10**9, load_bytes=4.0)
    products = [
        Kernel(Family.PRODUCT, precision, 10**6, 2 * size**3, Product(1, size, size, size))
        for size in (1000, 2000, 5000)
        for precision in (Precision.FP32, Precision.FP16)
    ]
    placed = [("layer_norm", card, norm) for card in ("v100", "a100_40gb")]
    for table, cards in (("linear", ("v100", "a100_40gb")), ("square_float16", ("h100", "rtx4090"))):
        placed += [(table, card, kernel) for card in cards for kernel in products]
    found = [MeasuredKernel(table, card, (kernel,), 1.0) for table, card, kernel in placed]
    return [replace(each, measured_s=each.time_s(rates, configuration.load("device", each.device))) for each in found]


def test_the_constants_behind_measured_kernels_are_found() -> None:
    true = replace(RATES, product=0.8, single_product=0.85, multiplying=0.7, load_clocks=2500.0)
    found = fit_constants(measured(true), RATES)
    for name in CONSTANTS:
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.1)
    assert found.convolution == RATES.convolution


def test_a_table_with_many_rows_weighs_as_much_as_one_with_few() -> None:
    slow, fast = (measured(replace(RATES, load_clocks=clocks)) for clocks in (3000.0, 1500.0))
    norms = [next(kernel for kernel in each if kernel.table == "layer_norm") for each in (slow, fast)]
    many = [norms[0]] * 30 + [replace(norms[1], device="a100_40gb")]
    once = [norms[0], replace(norms[1], device="a100_40gb")]
    clocks = [fit_constants([*of, *measured(RATES)[2:]], RATES).load_clocks for of in (many, once)]
    assert clocks[0] == pytest.approx(clocks[1], rel=0.02)


def test_a_chip_is_left_out_with_all_of_its_boards() -> None:
    assert is_same_chip("a100_80gb", "a100_40gb") and is_same_chip("h200", "h100")
    assert not is_same_chip("h20", "h100") and not is_same_chip("t4", "v100")
    others = without_chip(measured(RATES), "a100_80gb_sxm")
    assert {kernel.device for kernel in others} == {"v100", "h100", "rtx4090"}
