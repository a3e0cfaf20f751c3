"""Gathers and scatters move what they touch; those that copy or fill all of a table pay for that too."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.capture.trace import ANY_GPU
from membench.core.graph.call import Value
from membench.core.step.workload import Workload
from membench.cost.kernels import kernels_of
from membench.steps.predict import predict

ON_CUDA = ANY_GPU
WIDTH, ROWS = 64, 16
ROW = 4 * WIDTH
"""Bytes of a row of the table."""
NUMBERS, TOUCHED = 8 * ROWS, ROWS * ROW
"""Bytes of the numbers of rows, and of the rows that they are of."""

Function = Callable[[Tensor, Tensor], object]


class Of(nn.Module):
    """A function of a table, which is a buffer, and of an argument."""

    def __init__(self, function: Function, rows: int) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("table", torch.empty(rows, WIDTH, device="meta"))

    def forward(self, argument: Tensor) -> object:
        assert isinstance(self.table, Tensor)
        made = self.function(self.table, argument)
        return argument + 1 if made is self.table else made


def moved_bytes(function: Function, operator: str, rows: int, argument: Tensor) -> int:
    """Return what an operator moves in a call of a function on a table of that many rows."""
    workload = Workload("net", Of(function, rows).eval(), None, (argument,))
    tasks = [task for task in capture(workload, ON_CUDA).graph.tasks if task.call is not None]
    [task] = [task for task in tasks if task.call and task.call.operator.split(".")[1] == operator]
    return sum(kernel.moved_bytes for kernel in kernels_of(task))


def numbers() -> Tensor:
    return torch.empty(ROWS, dtype=torch.long, device="meta")


GATHERS: dict[str, tuple[Function, int]] = {
    "embedding": (lambda table, rows: F.embedding(rows, table), NUMBERS + 2 * TOUCHED),
    "index": (lambda table, rows: table[rows], NUMBERS + 2 * TOUCHED),
    "index_select": (lambda table, rows: table.index_select(0, rows), NUMBERS + 2 * TOUCHED),
    "gather": (lambda table, rows: table.gather(0, rows[:, None]), NUMBERS + 2 * 4 * ROWS),
    "take": (lambda table, rows: table.take(rows), NUMBERS + 2 * 4 * ROWS),
    "_embedding_bag_forward_only": (
        lambda table, rows: F.embedding_bag(rows[None], table, mode="sum"),
        # the place of the bag's first number, the bag, and what is returned in addition: the bag of each row, and the
        # bag's size
        NUMBERS + 8 + TOUCHED + ROW + 8 * ROWS + 8,
    ),
    "narrow_copy": (lambda table, rows: torch.narrow_copy(table, 0, 5, ROWS), 2 * TOUCHED),
    "select_copy": (lambda table, rows: torch.select_copy(table, 0, 5), 2 * ROW),
    "clone": (lambda table, rows: table[5 : 5 + ROWS].clone(), 2 * TOUCHED),
    "grid_sampler_2d": (
        lambda table, rows: F.grid_sample(
            table[None, None], rows.to(table.dtype)[:8].view(1, 2, 2, 2), align_corners=False
        ),
        4 * (8 + 16 * 4 + 4),  # a grid of 2 x 2 points, 16 elements for each at most
    ),
}  # fmt: skip
"""Gathers, and what they move whatever the table's size."""

SCATTERS: dict[str, tuple[Function, int]] = {
    "scatter": (lambda t, rows: t.scatter(0, rows[:, None], 0.0), NUMBERS + 4 * ROWS),
    "scatter_add": (lambda t, rows: t.scatter_add(0, rows[:, None], t[:ROWS]), NUMBERS + 3 * 4 * ROWS),
    "scatter_reduce": (lambda t, rows: t.scatter_reduce(0, rows[:, None], t[:ROWS], "amax"), NUMBERS + 3 * 4 * ROWS),
    "index_add": (lambda t, rows: t.index_add(0, rows, t[:ROWS]), NUMBERS + 3 * TOUCHED),
    "index_reduce": (lambda t, rows: t.index_reduce(0, rows, t[:ROWS], "amax"), NUMBERS + 3 * TOUCHED),
    "index_copy": (lambda t, rows: t.index_copy(0, rows, t[:ROWS]), NUMBERS + 2 * TOUCHED),
    "index_fill": (lambda t, rows: t.index_fill(0, rows, 0.0), NUMBERS + TOUCHED),
    "index_put": (lambda t, rows: t.index_put((rows,), t[:ROWS]), NUMBERS + 2 * TOUCHED),
    "put": (lambda t, rows: t.put(rows, t[:1, :ROWS]), NUMBERS + 2 * 4 * ROWS),
    "slice_scatter": (lambda t, rows: t.slice_scatter(t[:ROWS], 0, 5, 5 + ROWS), 2 * TOUCHED),
    "select_scatter": (lambda t, rows: t.select_scatter(t[0], 0, 5), 2 * ROW),
}
"""Scatters that are not in place, and what they move in addition to a copy of the table."""

IN_PLACE: dict[str, tuple[Function, int]] = {
    "scatter_": (lambda t, rows: t.scatter_(0, rows[:, None], 0.0), NUMBERS + 4 * ROWS),
    "scatter_add_": (lambda t, rows: t.scatter_add_(0, rows[:, None], t[:ROWS].clone()), NUMBERS + 3 * 4 * ROWS),
    "scatter_reduce_": (
        lambda t, rows: t.scatter_reduce_(0, rows[:, None], t[:ROWS].clone(), "amax"),
        NUMBERS + 3 * 4 * ROWS,
    ),
    "index_add_": (lambda t, rows: t.index_add_(0, rows, t[:ROWS].clone()), NUMBERS + 3 * TOUCHED),
    "index_copy_": (lambda t, rows: t.index_copy_(0, rows, t[:ROWS].clone()), NUMBERS + 2 * TOUCHED),
    "index_fill_": (lambda t, rows: t.index_fill_(0, rows, 0.0), NUMBERS + TOUCHED),
    "index_put_": (lambda t, rows: t.index_put_((rows,), t[:ROWS].clone(), accumulate=True), NUMBERS + 3 * TOUCHED),
    "put_": (lambda t, rows: t.put_(rows, t[0, :ROWS].clone()), NUMBERS + 2 * 4 * ROWS),
}
"""Scatters in place, and what they move whatever the table's size."""

WHOLE: dict[str, tuple[Function, int]] = {
    "masked_fill_": (lambda t, rows: t.masked_fill_(t > 0, 0.0), 9),
    "masked_fill": (lambda t, rows: t.masked_fill(t > 0, 0.0), 9),
    "where": (lambda t, rows: torch.where(t > 0, t, t), 9 + 4),
    "flip": (lambda t, rows: t.flip(0), 8),
}
"""Operators that pass all elements of a table, and the bytes that they move for each."""


@settings(deadline=None, max_examples=3, derandomize=True)
@given(rows=st.integers(1_000, 10_000_000))
@pytest.mark.parametrize("operator", GATHERS)
def test_a_gather_moves_what_it_reads_of_any_table(operator: str, rows: int) -> None:
    function, expected = GATHERS[operator]
    assert moved_bytes(function, operator, rows, numbers()) == expected


@settings(deadline=None, max_examples=3, derandomize=True)
@given(rows=st.integers(1_000, 10_000_000))
@pytest.mark.parametrize("operator", SCATTERS)
def test_a_scatter_copies_its_table_unless_it_is_in_place(operator: str, rows: int) -> None:
    function, expected = SCATTERS[operator]
    assert moved_bytes(function, operator, rows, numbers()) == expected + 2 * rows * ROW


@settings(deadline=None, max_examples=3, derandomize=True)
@given(rows=st.integers(1_000, 10_000_000))
@pytest.mark.parametrize("operator", IN_PLACE)
def test_a_scatter_in_place_moves_what_it_writes_of_any_table(operator: str, rows: int) -> None:
    function, expected = IN_PLACE[operator]
    assert moved_bytes(function, operator, rows, numbers()) == expected


@pytest.mark.parametrize("operator", WHOLE)
def test_an_operator_that_passes_all_elements_pays_for_all(operator: str) -> None:
    function, each = WHOLE[operator]
    assert moved_bytes(function, operator, 1_000, numbers()) == each * 1_000 * WIDTH


def test_more_rows_than_a_table_has_are_read_of_it_once() -> None:
    many = torch.empty(5_000, dtype=torch.long, device="meta")
    moved = moved_bytes(lambda table, rows: F.embedding(rows, table), "embedding", 1_000, many)
    assert moved == 5_000 * (8 + ROW) + 1_000 * ROW


def test_windows_that_overlap_read_what_they_share_once() -> None:
    moved = moved_bytes(lambda table, rows: table.view(-1).unfold(0, 32, 1) * 2, "mul", 1_000, numbers())
    assert moved == 4 * 64_000 + 4 * 32 * (64_000 - 31)


class Trained(nn.Module):
    """A function of a weight and of an argument."""

    def __init__(self, function: Function, rows: int) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.empty(rows, WIDTH, device="meta"))

    def forward(self, argument: Tensor) -> object:
        return self.function(self.weight, argument)


GRADIENTS: dict[str, tuple[Function, list[str], int]] = {
    "embedding": (lambda weight, rows: F.embedding(rows, weight), ["embedding_dense_backward"], NUMBERS + 2 * TOUCHED),
    "index": (lambda weight, rows: weight[rows], ["new_zeros", "index_put_"], NUMBERS + 3 * TOUCHED),
    "index_select": (
        lambda weight, rows: weight.index_select(0, rows),
        ["new_zeros", "index_add_"],
        NUMBERS + 3 * TOUCHED,
    ),
    "gather": (
        lambda weight, rows: weight.gather(0, rows[:, None]),
        ["new_zeros", "scatter_add_"],
        NUMBERS + 3 * 4 * ROWS,
    ),
    "take": (lambda weight, rows: weight.take(rows), ["zeros_like", "put_"], NUMBERS + 3 * 4 * ROWS),
    "slice": (lambda weight, rows: weight[:ROWS] * 2, ["slice_backward"], 2 * TOUCHED),
    "select": (lambda weight, rows: weight[5] * 2, ["select_backward"], 2 * ROW),
    "maximum": (lambda weight, rows: weight.max(0).values, ["new_zeros", "scatter_"], 2 * ROW + 2 * ROW),
}
"""Gathers, their gradients' operators, and what these move beside the zeros that fill all of a gradient."""


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_of_a_gather_fills_its_table_once_and_adds_to_what_was_read(name: str) -> None:
    function, operators, expected = GRADIENTS[name]
    for rows in (1_000, 3_000_000):
        workload = Workload("net", Trained(function, rows), lambda made: made.square().sum(), (numbers(),))
        tasks = capture(workload, ON_CUDA).graph.tasks
        found = {task.call.operator.split(".")[1]: task for task in tasks if task.call is not None}
        moved = sum(kernel.moved_bytes for each in operators for kernel in kernels_of(found[each]))
        assert moved == rows * ROW + expected, rows


def test_a_loss_reads_one_score_for_each_label_and_writes_zeros_for_the_others() -> None:
    scores, labels = torch.empty(32, 50_000, device="meta"), torch.empty(32, dtype=torch.long, device="meta")

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(scores)

        def forward(self) -> Tensor:
            return self.weight

    tasks = capture(Workload("net", Loss(), F.nll_loss, (), (labels,)), ON_CUDA).graph.tasks
    found = {task.call.operator.split(".")[1]: task for task in tasks if task.call is not None}
    [forward] = kernels_of(found["nll_loss_forward"])
    [backward] = kernels_of(found["nll_loss_backward"])
    assert forward.moved_bytes == 32 * (8 + 4) + 2 * 4  # labels, their scores; the loss and the sum of weights
    assert backward.moved_bytes == 32 * (8 + 4) + 2 * 4 + 32 * 50_000 * 4


def test_rows_of_a_large_table_take_microseconds() -> None:
    """1,024 rows of ten million: 5.72 ms were predicted, for reading the whole table."""
    with torch.device("meta"):
        table, rows = nn.Embedding(10_000_000, 64).eval(), torch.zeros(1024, dtype=torch.long)
    assert predict(table, None, ((rows,), ()), device="rtx4090").step_time_s < 5e-5


def test_what_windows_share_is_in_the_bytes_of_a_value_but_not_moved_twice() -> None:
    windows = Value(0, torch.float32, (61, 4), (1, 1), 0)
    assert (windows.extent_bytes, windows.moved_bytes) == (61 * 4 * 4, 64 * 4)
    empty = Value(0, torch.float32, (0, 4), (1, 1), 0)
    assert empty.moved_bytes == 0
