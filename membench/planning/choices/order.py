"""A compiled loop that sorts small numbers, such as steps."""

from typing import Any

import numpy as np

from membench.core.libraries.loops import part


@part
def by_step(steps: Any, most: int) -> Any:
    """Return the indices of numbers from -1 to `most` in their order, equal ones as they are."""
    start = np.zeros(most + 3, np.int64)
    for step in steps:
        start[step + 2] += 1
    for step in range(1, len(start)):
        start[step] += start[step - 1]
    found = np.empty(len(steps), np.int64)
    for i in range(len(steps)):
        found[start[steps[i] + 1]] = i
        start[steps[i] + 1] += 1
    return found
