"""The fit of PyTorch's kernel rates: it finds rates behind times, and only the chosen rows take part."""

from dataclasses import replace

import numpy as np
import pytest

from membench.core import configuration
from membench.core.configuration import CONF_DIRECTORY, ROOT, read_options
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.cost.kernels import Family, Kernel
from membench.cost.products import Product
from membench.cost.rates import peak_times
from membench.lab.calibrate.kernel_rates import (
    ASSUMED,
    DATASETS,
    ROWS,
    PublishedStep,
    chosen_rows,
    fit_rates,
    residual_lines,
    with_rates,
    with_rows,
)
from membench.lab.validation.dataset import FITTED, load_dataset

DATASETS_FOLDER = ROOT / "experiments" / "validation"
DEVICE = configuration.load("device", "rtx3090")
RATES = configuration.load("framework", "pytorch").efficiency.kernels


def step(name: str, *kernels: Kernel) -> PublishedStep:
    """A hundred calls of each kernel."""
    peaks = [peak_times(kernel, RATES, DEVICE) for kernel in kernels]
    peak_s = np.array([(each.multiplying_s, each.moving_s, each.layout_s) for each in peaks])
    return PublishedStep(name, 1.0, kernels, np.full(len(kernels), 100.0), peak_s, 100 * len(kernels))


def steps() -> list[PublishedStep]:
    matrices = Product(1, 4096, 4096, 4096)
    convolution = Kernel(Family.CONVOLUTION, Precision.FP16, 10**8, 2 * 4096**3, matrices)
    copy = Kernel(Family.COPY, Precision.FP16, 10**9)
    sums = Kernel(Family.REDUCTION, Precision.FP16, 10**9)
    return [
        step("convolutions", convolution),
        step("copies", copy),
        step("both", convolution, copy),
        step("sums", sums),
    ]


@pytest.mark.parametrize(("convolution", "copy"), [(0.6, 0.3), (1.1, 0.7)])
def test_the_rates_behind_a_set_of_steps_are_found(convolution: float, copy: float) -> None:
    true = replace(RATES, convolution=convolution, copy=copy)
    measured = [replace(each, measured_s=each.time_s(true, DEVICE)) for each in steps()]
    found = fit_rates(measured, RATES, DEVICE)
    assert found.convolution == pytest.approx(convolution, rel=0.1)
    assert found.copy == pytest.approx(copy, rel=0.1)
    assert found.layout == pytest.approx(ASSUMED["layout"][0], rel=1e-3)  # no step has a change of layout
    assert (found.product, found.single_product) == (RATES.product, RATES.single_product)


def test_one_row_that_no_rate_explains_moves_the_rates_little() -> None:
    measured = [replace(each, measured_s=each.time_s(RATES, DEVICE)) for each in steps()]
    outlier = replace(measured[1], measured_s=10 * measured[1].measured_s)
    with_outlier = fit_rates([*measured, outlier, measured[1], measured[1]], RATES, DEVICE)
    assert with_outlier.copy == pytest.approx(fit_rates(measured, RATES, DEVICE).copy, rel=0.15)


def test_the_listed_rows_are_the_chosen_ones_and_leave_the_others_to_be_judged() -> None:
    chosen = chosen_rows(DATASETS_FOLDER)
    assert len({(name, row.network) for name, row in chosen}) == ROWS
    for name in DATASETS:
        dataset = load_dataset(DATASETS_FOLDER, name)
        fitted = [row.network for row in dataset.rows if dataset.is_fitted(row, "step_time_s")]
        assert sorted(fitted) == sorted(row.network for of, row in chosen if of == name)
        assert len(fitted) < len(dataset.rows) / 10
    text = (DATASETS_FOLDER / FITTED).read_text()
    assert with_rows(text, chosen) == text
    assert set(read_options(DATASETS_FOLDER / FITTED)) > set(DATASETS)


def test_a_fit_replaces_rates_and_residuals_and_nothing_else() -> None:
    text = (CONF_DIRECTORY / "framework" / "pytorch.yaml").read_text()
    lines = [line.removeprefix("# ") for line in text.splitlines() if " ms, fitted " in line]
    assert len(lines) == ROWS
    written = residual_lines([replace(each, name="timm_nchw net") for each in steps()], RATES, DEVICE)
    other = with_rates(text, replace(RATES, copy=0.25), written)
    assert "    copy: 0.25  # fitted" in other
    assert "timm_nchw net" in other and lines[0] not in other
    assert len(other.splitlines()) == len(text.splitlines()) - ROWS + len(steps())
    with pytest.raises(MembenchError, match="one line of product"):
        with_rates(text.replace("    product:", "    products:"), RATES, written)
