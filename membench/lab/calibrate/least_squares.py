"""Non-negative least squares on relative errors."""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from membench.lab.calibrate.rows import BaselineRow


@dataclass(frozen=True)
class Residual:
    """A fitted value; `left_out` is the relative error when the row is left out of the fit."""

    row: BaselineRow
    fitted: float
    left_out: float

    @property
    def error(self) -> float:
        return self.fitted / self.row.value - 1


def least_squares(terms: ArrayLike, values: ArrayLike, scale: ArrayLike) -> NDArray[np.float64]:
    """Return the non-negative parameters that make the errors, each divided by its scale, least.

    Args:
        terms: for each value what each parameter multiplies.
    """
    divisors = np.array(scale)
    matrix = np.array(terms) / divisors[:, None]
    return cast(NDArray[np.float64], nnls(matrix, np.array(values) / divisors)[0])


def left_out_errors(terms: list[list[float]], values: list[float], scale: list[float]) -> list[float]:
    """Return each value's error, divided by its scale, under the parameters that the others give."""
    errors = []
    for left_out, (own, value, divisor) in enumerate(zip(terms, values, scale, strict=True)):
        others = (np.delete(each, left_out, axis=0) for each in (terms, values, scale))
        errors.append((float(np.dot(own, least_squares(*others))) - value) / divisor)
    return errors


def four_digits(value: float) -> float:
    """Return a fitted constant with the digits that the configuration file has."""
    return float(f"{value:.4g}")
