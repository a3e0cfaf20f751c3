"""Small numbers are sorted as numpy sorts them where equal ones keep their order."""

from typing import Any

import numpy as np
import pytest
from numba import njit

from membench.planning.choices.order import by_step


def sorted_by_step(steps: Any, most: int) -> Any:
    return by_step(steps, most)


SORTED: Any = njit(sorted_by_step)
"""A part of compiled loops has no form for Python."""


@pytest.mark.parametrize("count", [0, 1, 7, 50])
def test_equal_numbers_keep_their_order(count: int) -> None:
    steps = np.random.default_rng(count).integers(-1, 9, count)
    np.testing.assert_array_equal(SORTED(steps, 9), np.argsort(steps, kind="stable"))
