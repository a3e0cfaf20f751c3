"""PyTorch's kernel rates, fitted on single kernels, and then on 40 published steps of training on an RTX 3090.

The rows are those of timm's two tables whose names have the smallest SHA-256; all other rows are left to `membench
validate`, which judges on them. A rate's logarithm is also drawn towards a value that was assumed before, each with the
width of `ASSUMED`: few rows have a kernel of some families. What single kernels determine, steps leave as it is
(`membench.lab.calibrate.kernel_constants`).
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import Task
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import KernelRates
from membench.cost.kernels import Kernel, kernels_of
from membench.cost.rates import PeakTimes, peak_times, reached
from membench.lab.calibrate.kernel_constants import CONSTANTS, fit_constants, is_same_chip, without_chip
from membench.lab.calibrate.least_squares import four_digits
from membench.lab.calibrate.measured_kernels import error_lines, measured_kernels
from membench.lab.validation.dataset import FITTED, load_dataset
from membench.lab.validation.predicting import predictor_of
from membench.lab.validation.rows import Row

DATASETS = ("timm_nchw", "timm_nhwc")
DEVICE = "rtx3090"
ROWS = 40
UNALIGNED_DEVICE = "h200"
"""On which `KernelRates.unaligned_ops_per_s` was measured."""
ASSUMED = {
    "convolution": (0.95, 0.2),
    "weight_gradient": (0.7, 0.3),
    "grouped": (0.4, 0.7),
    "grouped_channels_last": (0.1, 0.7),
    "depthwise": (0.1, 0.8),
    "depthwise_channels_last": (0.2, 0.8),
    "depthwise_weight": (0.03, 0.8),
    "depthwise_weight_channels_last": (0.05, 0.8),
    "elementwise": (0.87, 0.05),
    "copy": (0.5, 0.3),
    "normalization": (0.7, 0.2),
    "reduction": (0.6, 0.3),
    "layout": (0.7, 0.5),
    "kernel_s": (4e-6, 0.4),
}
"""Each fitted constant's assumed value, and the width of that assumption in its logarithm."""
_ROW_WIDTH = 0.1
"""Of a row's error, in its logarithm."""
_OUTLIER = 1.5
"""Widths from which on a row's error counts by its size, and no longer by its square."""


@dataclass(frozen=True)
class PublishedStep:
    """A published step: its kernels, each with its peak times and the number of its calls.

    Attributes:
        counts: counts of equal kernels.
        peak_s: seconds of each kernel at peak rates, for its operations, its bytes and its changes of layout.
        starts: kernels that start, those of the update included.
    """

    name: str
    measured_s: float
    kernels: tuple[Kernel, ...]
    counts: NDArray[np.float64]
    peak_s: NDArray[np.float64]
    starts: int

    def time_s(self, rates: KernelRates, device: DeviceProfile) -> float:
        """Return the seconds for which the device is busy."""
        fractions = np.array([_three(reached(kernel, rates, device)) for kernel in self.kernels])
        multiplying_s, moving_s, layout_s = (self.peak_s / fractions).T
        busy_s = np.maximum(multiplying_s, moving_s) + layout_s
        return float((busy_s * self.counts).sum()) + self.starts * rates.kernel_s


def fit_kernels(datasets: Path, framework: Path) -> str:
    """Fit the rates, write them with the residuals into the framework's file, and the rows' names into the data sets'.

    Args:
        datasets: the folder of published measurements.
        framework: ``pytorch.yaml``.

    Returns:
        The residuals, and the errors of single kernels on several cards.
    """
    kernels = measured_kernels()
    rates = fit_constants(kernels, _published_rates())
    device: DeviceProfile = configuration.load("device", DEVICE)
    rows = chosen_rows(datasets)
    steps = _steps_of(rows, rates, device)
    fitted = fit_rates(steps, rates, device)
    lines = residual_lines(steps, fitted, device)
    framework.write_text(with_rates(framework.read_text(), fitted, lines))
    (datasets / FITTED).write_text(with_rows((datasets / FITTED).read_text(), rows))
    return "\n".join([*lines, "", *error_lines(kernels, fitted)])


def rates_without(card: str, datasets: Path) -> KernelRates:
    """Return the rates that are fitted without any measurement on the chip of a card in ``conf/device``.

    Rates that nothing else determines are the assumed ones. Of the card only its file in ``conf/device`` is used.
    """
    rates = fit_constants(without_chip(measured_kernels(), card), _published_rates())
    if is_same_chip(card, UNALIGNED_DEVICE):
        rates = replace(rates, unaligned_ops_per_s=inf)
    device: DeviceProfile = configuration.load("device", DEVICE)
    steps = [] if is_same_chip(card, DEVICE) else _steps_of(chosen_rows(datasets), rates, device)
    return fit_rates(steps, rates, device)


def fitted_values(rates: KernelRates) -> dict[str, float]:
    """Return by name what a fit determines of rates, and what it leaves out with a card."""
    return {name: getattr(rates, name) for name in (*CONSTANTS, *ASSUMED, "unaligned_ops_per_s")}


def _published_rates() -> KernelRates:
    rates: KernelRates = configuration.load("framework", "pytorch").efficiency.kernels
    return rates


def _steps_of(rows: Sequence[tuple[str, Row]], rates: KernelRates, device: DeviceProfile) -> list[PublishedStep]:
    return [step_of(f"{dataset} {row.network}", row, rates, device) for dataset, row in rows]


def chosen_rows(datasets: Path) -> list[tuple[str, Row]]:
    """Return the rows to fit, each with the name of its data set."""
    rows = [(name, row) for name in DATASETS for row in load_dataset(datasets, name).rows]

    def digest(item: tuple[str, Row]) -> str:
        name, row = item
        return hashlib.sha256(f"{name.removeprefix('timm_')}/{row.network}".encode()).hexdigest()

    return sorted(rows, key=digest)[:ROWS]


def step_of(name: str, row: Row, rates: KernelRates, device: DeviceProfile) -> PublishedStep:
    """Capture a row's step and return its kernels."""
    tasks: Sequence[Task] = predictor_of(row.step).graph_on(device).tasks
    counts = Counter(kernel for task in tasks for kernel in kernels_of(task))
    return PublishedStep(
        name,
        row.measured["step_time_s"],
        tuple(counts),
        np.array(list(counts.values()), float),
        np.array([_three(peak_times(kernel, rates, device)) for kernel in counts]),
        sum(task.launches for task in tasks),
    )


def _three(times: PeakTimes) -> tuple[float, float, float]:
    return times.multiplying_s, times.moving_s, times.layout_s


def fit_rates(steps: Sequence[PublishedStep], rates: KernelRates, device: DeviceProfile) -> KernelRates:
    """Return the rates with the fitted constants replaced, to four digits."""
    assumed = np.log([value for value, _ in ASSUMED.values()])
    widths = np.array([width for _, width in ASSUMED.values()])

    def with_logarithms(values: NDArray[np.float64]) -> KernelRates:
        fitted: dict[str, Any] = dict(zip(ASSUMED, np.exp(values).tolist(), strict=True))
        return replace(rates, **fitted)

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        found = with_logarithms(values)
        errors = np.log([step.time_s(found, device) / step.measured_s for step in steps]) / _ROW_WIDTH
        softened = _OUTLIER * np.sqrt(2 * (np.sqrt(1 + (errors / _OUTLIER) ** 2) - 1))
        return np.concatenate([softened, (values - assumed) / widths])

    found = with_logarithms(least_squares(residuals, assumed, diff_step=1e-3, max_nfev=40).x)
    rounded: dict[str, Any] = {name: four_digits(getattr(found, name)) for name in ASSUMED}
    return replace(found, **rounded)


def residual_lines(steps: Sequence[PublishedStep], rates: KernelRates, device: DeviceProfile) -> list[str]:
    """Return a line for each step: measured and fitted milliseconds, and the relative error."""
    lines = []
    for step in sorted(steps, key=lambda step: step.name):
        fitted_s = step.time_s(rates, device)
        error = fitted_s / step.measured_s - 1
        lines.append(f"{step.name:<42} {step.measured_s * 1e3:7.1f} ms, fitted {fitted_s * 1e3:7.1f} {error:+.1%}")
    errors = [abs(step.time_s(rates, device) / step.measured_s - 1) for step in steps]
    median, ninth = np.percentile(errors, [50, 90])
    return [*lines, f"median error {median:.1%}, 90th percentile {ninth:.1%}"]


def with_rates(text: str, rates: KernelRates, lines: Sequence[str]) -> str:
    """Return a framework file's text with fitted rates and residuals in place of its own; all else stays.

    Raises:
        MembenchError: the text has no line of a rate, or not one block of residuals.
    """
    block = "".join(f"# {line}\n" for line in lines)
    text, blocks = re.subn(r"(?m)^(# timm_.* ms, fitted .*\n)+# median error .*\n", block, text)
    for name in (*CONSTANTS, *ASSUMED):
        text, found = re.subn(rf"(?m)^( *{name}:) \S+", rf"\1 {getattr(rates, name):g}", text)
        if (blocks, found) != (1, 1):
            raise MembenchError(f"the file to fit needs one block of residuals, and one line of {name}")
    return text


def with_rows(text: str, rows: Sequence[tuple[str, Row]]) -> str:
    """Return the list of fitted rows with these in place of those of the same data sets."""
    text = re.sub(rf"(?m)^({'|'.join(DATASETS)}):.*\n(  - .*\n)*", "", text)
    names: Mapping[str, list[str]] = {
        dataset: sorted(row.network for name, row in rows if name == dataset) for dataset in DATASETS
    }
    for dataset, networks in names.items():
        text += f"{dataset}:  # step time, by membench fit kernels\n"
        text += "".join(f"  - {{network: {network}}}\n" for network in networks)
    return text
