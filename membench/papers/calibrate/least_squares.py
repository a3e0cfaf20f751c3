"""Non-negative least squares on relative errors."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from membench.papers.calibrate.rows import BaselineRow


@dataclass(frozen=True)
class Residual:
    """A fitted value; `left_out` is the relative error when the row is left out of the fit."""

    row: BaselineRow
    fitted: float
    left_out: float

    @property
    def error(self) -> float:
        return self.fitted / self.row.value - 1


def least_squares(
    terms: Iterable[Iterable[float]], values: list[float], scale: list[float] | None = None
) -> NDArray[np.float64]:
    """Return the non-negative parameters that make the errors, each divided by `scale`, least.

    Args:
        terms: for each value what each parameter multiplies.
        scale: the values themselves unless given.
    """
    divisors = np.array(values if scale is None else scale)
    matrix = np.array([list(row) for row in terms]) / divisors[:, None]
    return cast(NDArray[np.float64], nnls(matrix, np.array(values) / divisors)[0])


def left_out_errors(
    terms: list[list[float]], values: list[float], scale: list[float] | None = None
) -> list[float]:
    """Return each value's relative error under the parameters that the others give."""
    divisors = values if scale is None else scale
    errors = []
    for left_out in range(len(values)):
        others = [i for i in range(len(values)) if i != left_out]
        parameters = least_squares(
            [terms[i] for i in others], [values[i] for i in others], [divisors[i] for i in others]
        )
        predicted = float(np.dot(terms[left_out], parameters))
        errors.append((predicted - values[left_out]) / divisors[left_out])
    return errors


def four_digits(value: float) -> float:
    """Return a fitted constant with the digits that the configuration file has."""
    return float(f"{value:.4g}")
