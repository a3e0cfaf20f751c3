"""Constants of single kernels, fitted on their measured times on several cards.

Products in single precision, and kernels whose threads wait for each load. Each fitted group, a table's rows on a card,
weighs the same. Cards whose power does not suffice for their boost clock are left out of the products that NeuSight
measured, and the others of Pascal too: cuBLAS has few tiles for them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from membench.core import configuration
from membench.core.hardware.efficiency import KernelRates
from membench.lab.calibrate.least_squares import four_digits
from membench.lab.calibrate.measured_kernels import MeasuredKernel, profiles_of

CONSTANTS = {
    "product": 0.95,
    "single_product": 0.95,
    "multiplying": 0.8,
    "edge_bytes_per_clock": 90.0,
    "tile_depth": 60.0,
    "load_clocks": 1500.0,
}
"""Each fitted constant with the value that its search begins at."""
_CARDS = {
    **dict.fromkeys(("linear", "bmm"), ("v100", "a100_40gb")),
    "square_float16": ("h20", "h100", "h100_pcie", "l4", "rtx4090", "rtx5080", "rtx5090", "v100_dgx2"),
    "square_float32": ("h20", "h100", "h100_pcie", "l4", "rtx4090", "rtx5080", "rtx5090", "v100_dgx2"),
    "layer_norm": ("p4", "p100", "v100", "t4", "a100_40gb"),
}
"""By table, those whose rows are fitted."""
_LONG_S = 3e-4
"""Of NeuSight's products: shorter ones are partly of the start of a kernel."""
_OUTLIER = 0.2
"""Logarithm of an error from which on it counts by its size, and no longer by its square."""


def without_chip(kernels: Sequence[MeasuredKernel], card: str) -> list[MeasuredKernel]:
    """Return the kernels that were measured on another chip than that of a card in ``conf/device``."""
    others = {name for name in profiles_of(kernels) if not is_same_chip(card, name)}
    return [kernel for kernel in kernels if kernel.device in others]


def is_same_chip(card: str, other: str) -> bool:
    """Return whether two cards in ``conf/device`` have one chip, with as many multiprocessors."""
    first, second = (configuration.load("device", name) for name in (card, other))
    return (first.compute_capability, first.multiprocessors) == (second.compute_capability, second.multiprocessors)


def fit_constants(kernels: Sequence[MeasuredKernel], rates: KernelRates) -> KernelRates:
    """Return the rates with `CONSTANTS` replaced, to four digits."""
    fitted = [kernel for kernel in kernels if _is_fitted(kernel)]
    profiles = profiles_of(fitted)
    rows = Counter((kernel.table, kernel.device) for kernel in fitted)
    weights = np.array([rows[kernel.table, kernel.device] ** -0.5 for kernel in fitted])
    start = np.log(list(CONSTANTS.values()))

    def with_logarithms(values: NDArray[np.float64]) -> KernelRates:
        found: dict[str, Any] = dict(zip(CONSTANTS, map(four_digits, np.exp(values).tolist()), strict=True))
        return replace(rates, **found)

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        found = with_logarithms(values)
        ratios = [kernel.time_s(found, profiles[kernel.device]) / kernel.measured_s for kernel in fitted]
        errors = np.log(ratios) / _OUTLIER
        softened: NDArray[np.float64] = np.sqrt(2 * (np.sqrt(1 + errors**2) - 1)) * np.sign(errors)
        return weights * softened

    return with_logarithms(least_squares(residuals, start, diff_step=1e-2, max_nfev=40).x)


def _is_fitted(kernel: MeasuredKernel) -> bool:
    is_long = kernel.table not in ("linear", "bmm") or kernel.measured_s >= _LONG_S
    return kernel.device in _CARDS.get(kernel.table, ()) and is_long
