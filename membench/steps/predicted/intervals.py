"""Intervals of predictions: where measured values of published steps of a kind lie, relative to their predictions.

``conf/intervals.yaml`` has the distributions, which the laboratory calibrates (membench/lab/validation/intervals.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from membench.core.configuration import CONF_DIRECTORY, read_options

INTERVALS = CONF_DIRECTORY / "intervals.yaml"
TIME, MEMORY = "step_time_s", "memory_bytes"
INSIDE = 0.9
"""Fraction of measured values that an interval is to contain; as many lie above it as below."""
PROBABILITIES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
"""Of the quantiles in the file."""
OPEN = (0.02, 0.98)
"""Probabilities to fit between which it is open whether a step fits."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class StepKind:
    """What of a step decides how far its prediction may be off.

    Attributes:
        trains: whether it computes gradients.
        several: whether several GPUs run it.
        copies: whether it copies between device and host memory.
        measured: whether step times were published for its device.
    """

    trains: bool
    several: bool
    copies: bool
    measured: bool

    def __str__(self) -> str:
        parts = (
            f"{'training' if self.trains else 'inference'} on {'several GPUs' if self.several else 'one GPU'}",
            *(["with copies to host memory"] * self.copies),
            f"on a card with{'' if self.measured else 'out'} published step times",
        )
        return ", ".join(parts)


@dataclass(frozen=True)
class Ratios:
    """Distribution of measured over predicted values of published steps of a kind.

    Attributes:
        quantiles: at `PROBABILITIES`.
    """

    quantiles: tuple[float, ...]

    def interval(self, predicted: float) -> Interval:
        """Return the bounds between which a fraction `INSIDE` of measured values lies for a predicted one."""
        low, high = np.interp([(1 - INSIDE) / 2, (1 + INSIDE) / 2], PROBABILITIES, self.quantiles)
        return predicted * float(low), predicted * float(high)

    def probability_within(self, ratio: float) -> float:
        """Return the probability that a measured value is at most `ratio` times the predicted one.

        It is 0 below the lowest quantile and 1 above the highest.
        """
        return float(np.interp(ratio, self.quantiles, PROBABILITIES, left=0.0, right=1.0))


def has_published_times(device: str) -> bool:
    """Return whether step times were published for a device of ``conf/device``."""
    return device in _calibrated()["devices"]


def ratios_of(quantity: str, kind: StepKind) -> Ratios:
    """Return the distribution for a kind of step.

    Args:
        quantity: `TIME` or `MEMORY`.
    """
    own = asdict(kind)
    return next(
        Ratios(tuple(entry["quantiles"]))
        for entry in _calibrated()[quantity]
        if all(own[name] == value for name, value in entry.items() if name != "quantiles")
    )


def chance_in_words(probability: float | None) -> str:
    """Return what to add to whether a step fits; nothing where that is all but certain, or not known."""
    is_open = probability is not None and OPEN[0] <= probability <= OPEN[1]
    return f", with a probability of {probability:.0%} to fit" if is_open else ""


@cache
def _calibrated() -> Mapping[str, Any]:
    return read_options(INTERVALS)


def in_words(interval: Interval, form: Callable[[float], str]) -> str:
    """Return an interval as text, each bound in a form such as `format_bytes`."""
    low, high = map(form, interval)
    return f"{INSIDE:.0%}: {low} to {high}"
