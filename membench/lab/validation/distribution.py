"""Distribution of relative errors over many rows, and bootstrap intervals of their median or mean."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import bootstrap

WITHIN = (0.10, 0.25, 0.50)
CONFIDENCE = 0.9
"""Of the interval of a statistic."""
_RESAMPLES = 2000
_SEED = 68

Statistic = Callable[..., Any]
STATISTICS: Mapping[str, Statistic] = {"median": np.median, "mean": np.mean}


@dataclass(frozen=True)
class Distribution:
    """Distribution of relative errors.

    Attributes:
        rows: with an error.
        median, p90: figures of absolute values.
        median_interval: bounds of the median by the percentile bootstrap over rows; None: of a single row.
        bias: the median with its sign; negative: too low.
        within: fraction of rows within each of `WITHIN`.
    """

    rows: int
    median: float
    median_interval: tuple[float, float] | None
    p90: float
    bias: float
    within: tuple[float, ...]

    @classmethod
    def of(cls, errors: Iterable[float | None]) -> "Distribution | None":
        """Return the distribution of those that are not None; None if none is left."""
        signed = np.array([error for error in errors if error is not None])
        if not len(signed):
            return None
        absolute = np.abs(signed)
        return cls(
            rows=len(signed),
            median=float(np.median(absolute)),
            median_interval=interval_of(absolute, np.median),
            p90=float(np.quantile(absolute, 0.9)),
            bias=float(np.median(signed)),
            within=tuple(float(np.mean(absolute <= limit)) for limit in WITHIN),
        )


def interval_of(values: ArrayLike, statistic: Statistic) -> tuple[float, float] | None:
    """Return the bounds of a statistic by the percentile bootstrap; None of fewer than two values."""
    values = np.asarray(values)
    if len(values) < 2:
        return None
    found = bootstrap(
        (values,), statistic, n_resamples=_RESAMPLES, confidence_level=CONFIDENCE, method="percentile",
        random_state=np.random.default_rng(_SEED),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)
