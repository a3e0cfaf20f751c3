"""Distribution of relative errors over many rows, with a bootstrap interval of its median."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap

WITHIN = (0.10, 0.25, 0.50)
CONFIDENCE = 0.9
"""Of the interval of a median."""
_RESAMPLES = 2000
_SEED = 68


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
            median_interval=_median_interval(absolute),
            p90=float(np.quantile(absolute, 0.9)),
            bias=float(np.median(signed)),
            within=tuple(float(np.mean(absolute <= limit)) for limit in WITHIN),
        )


def _median_interval(values: np.ndarray) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    found = bootstrap(
        (values,), np.median, n_resamples=_RESAMPLES, confidence_level=CONFIDENCE, method="percentile",
        random_state=np.random.default_rng(_SEED),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)
