"""Random functions of inputs that require a gradient: sums of uses, views, broadcasts, returned inputs."""

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

ROWS, COLUMNS = 6, 4

Steps = tuple[tuple[str, int, int], ...]
"""Operations, each with the numbers of two earlier values that it may read."""

OPERATIONS: dict[str, Callable[["OfInputs", Tensor, Tensor], Tensor]] = {
    "add": lambda _, a, b: a + b,
    "subtract": lambda _, a, b: a - b,
    "multiply": lambda _, a, b: a * b,
    "double": lambda _, a, b: a * 2,
    "by a weight": lambda module, a, b: a * module.weight,
    "plus its tanh": lambda _, a, b: a + torch.tanh(a),
    "lerp": lambda _, a, b: a.lerp(b, 0.3),
    "lerp in place": lambda _, a, b: (a * 1).lerp_(b, 0.3),
    "add in place": lambda _, a, b: (a * 1).add_(b),
    "sigmoid": lambda _, a, b: a.sigmoid(),
    "relu": lambda _, a, b: a.relu(),
    "linear": lambda module, a, b: module.square(a),
    "normalized": lambda module, a, b: module.norm(a),
    "dropout": lambda _, a, b: functional.dropout(a, 0.3),
    "halves swapped": lambda _, a, b: torch.cat(a.chunk(2, 1)[::-1], 1),
    "transposed twice": lambda _, a, b: a.t().contiguous().t(),
    "a row of all": lambda _, a, b: a[:1].expand(ROWS, COLUMNS),
    "mean of rows": lambda _, a, b: a.mean(0, keepdim=True) + b,
    "rows by index": lambda _, a, b: a[torch.tensor([0, 0, 1, 2, 3, 3])] + b,
    "where": lambda _, a, b: torch.where(b > 0, a, b),
    "maximum": lambda _, a, b: torch.max(a, b),
    "detached": lambda _, a, b: a * b.detach(),
    "as it is": lambda _, a, b: a,
    "view": lambda _, a, b: a.reshape(ROWS // 2, -1).view(ROWS, COLUMNS),
    "complex": lambda _, a, b: (torch.complex(a, b) * 1j).real,
}

SECOND_SHAPES: dict[str, tuple[int, ...]] = {
    "like the first": (ROWS, COLUMNS),
    "a row": (COLUMNS,),
    "a column": (ROWS, 1),
    "a number": (),
}


class OfInputs(nn.Module):
    """A function of two inputs, given as operations.

    Args:
        returned: numbers of the values that it returns; the first two are the inputs.
    """

    def __init__(self, steps: Steps, returned: Sequence[int]) -> None:
        super().__init__()
        self.steps, self.returned = steps, tuple(returned)
        self.weight = nn.Parameter(torch.randn(COLUMNS))
        self.square, self.norm = nn.Linear(COLUMNS, COLUMNS), nn.LayerNorm(COLUMNS)

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
        values = [first, second.expand(ROWS, COLUMNS)]
        for name, one, other in self.steps:
            values.append(OPERATIONS[name](self, values[one % len(values)], values[other % len(values)]))
        found = [values[position % len(values)] for position in self.returned]
        return (*found, values[-1] * self.weight)


STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6
).map(tuple)
RETURNED = st.lists(st.integers(0, 7), max_size=2).map(tuple)
