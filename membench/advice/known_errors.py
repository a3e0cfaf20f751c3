"""Errors of predictions beside published measurements: quantities, distributions, and families of networks."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

WITHIN = (0.10, 0.25, 0.50)
LARGEST = "largest_parameters"
"""The weights of the largest network that a device can train."""


QUANTITIES = ("step_time_s", "allocated_bytes", "reserved_bytes", "used_bytes", LARGEST)
"""What can have been measured, in its name's unit; all but `LARGEST` are attributes of `Prediction`."""

_PREFIXES = re.compile(r"^(?:tf|gluon|legacy|swsl|ssl|ig|tv|adv)_")


@dataclass(frozen=True)
class Distribution:
    """Distribution of relative errors.

    Attributes:
        rows: with an error.
        median, p90: figures of absolute values.
        bias: the median with its sign; negative: too low.
        within: fraction of rows within each of `WITHIN`.
    """

    rows: int
    median: float
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
            p90=float(np.quantile(absolute, 0.9)),
            bias=float(np.median(signed)),
            within=tuple(float(np.mean(absolute <= limit)) for limit in WITHIN),
        )


def family(network: str) -> str:
    """Return the letters that a network's name begins with, without a prefix that names the origin of its weights."""
    plain = _PREFIXES.sub("", network.lower())
    found = re.match(r"[a-z]+", plain)
    return found.group() if found else plain
