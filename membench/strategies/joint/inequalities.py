"""The rows of a linear program, and its solution."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

OPTIMAL, LIMIT_REACHED, INFEASIBLE = 0, 1, 2
"""Statuses of scipy's `linprog`."""

MOST_STEPS = 1000
"""Of the interior point method, which ends after tens of steps, or in rare cases never."""


@dataclass
class Inequalities:
    """Coefficients times variables at most a limit."""

    limits: list[float] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)

    def add(self, limit: float, terms: dict[int, float]) -> None:
        self._rows += [len(self.limits)] * len(terms)
        self._columns += terms
        self._values += terms.values()
        self.limits.append(limit)

    def matrix(self, columns: int) -> coo_array:
        return coo_array((self._values, (self._rows, self._columns)), shape=(len(self.limits), columns))


def minimize(objective: np.ndarray, rows: Inequalities, equal: Inequalities) -> Any:
    """Return scipy's result for variables of at least 0.

    Args:
        equal: rows whose limit is met.
    """
    solve = partial(
        linprog,
        objective,
        A_ub=rows.matrix(len(objective)),
        b_ub=rows.limits,
        A_eq=equal.matrix(len(objective)),
        b_eq=equal.limits,
        bounds=(0, None),
    )
    solution = solve(method="highs-ipm", options={"maxiter": MOST_STEPS})
    return solve(method="highs-ds") if solution.status == LIMIT_REACHED else solution
