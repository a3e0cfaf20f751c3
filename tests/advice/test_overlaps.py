"""Neighbours in an order by time whose intervals overlap are named by the first and the last of each row."""

from hypothesis import given
from hypothesis import strategies as st

from membench.advice.overlaps import overlaps

START = "90% intervals of neighbours' times overlap, so their order may be another: "


def test_each_row_of_overlapping_neighbours_is_named() -> None:
    bounds = {"a": (1.0, 2.0), "b": (1.5, 3.0), "c": (2.9, 3.5), "d": (4.0, 5.0), "e": (6.0, 8.0), "f": (7.0, 9.0)}
    assert list(overlaps(bounds.items())) == [f"{START}a to c, e to f"]


@given(st.lists(st.integers(0, 100), unique=True))
def test_intervals_apart_leave_no_order_open(starts: list[int]) -> None:
    assert not list(overlaps((str(start), (float(start), start + 0.9)) for start in sorted(starts)))
