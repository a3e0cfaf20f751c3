"""The largest batch: one that fits, at least the one at hand, close to the true one, in a few plans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.advice.device.search import DIGITS, MOST, TRIALS, largest_batch, next_guess, rounded


@given(st.integers(1, MOST))
def test_a_size_is_rounded_down_by_less_than_a_part_in_16(size: int) -> None:
    assert size * (1 - 2 ** (1 - DIGITS)) < rounded(size) <= size
    assert rounded(rounded(size)) == rounded(size)


@given(st.integers(1, 500), st.integers(0, 10_000), st.integers(1, 100), st.floats(0.1, 30.0))
def test_where_the_need_is_a_line_the_largest_is_found(
    batch_size: int, constant: int, slope: int, times: float
) -> None:
    room = constant + slope * batch_size * times
    planned: list[int] = []

    def load(size: int) -> float:
        planned.append(size)
        return (constant + slope * size) / room

    at_hand = (constant + slope * batch_size) / room
    found = largest_batch(load, batch_size, at_hand, fixed=constant / room)
    true = int(batch_size * times * (1 + 1e-12))
    assert len(planned) <= TRIALS
    if found is None:
        assert true < max(2, batch_size)
    else:
        assert found <= max(true, batch_size)
        assert found > min(true, MOST) * (1 - 2 ** (2 - DIGITS)) - 1


@given(st.integers(1, 500), st.floats(1.0, 20.0))
def test_a_plan_that_takes_what_there_is_is_followed_by_larger_batches(batch_size: int, times: float) -> None:
    true = int(batch_size * times)
    found = largest_batch(lambda size: 1.0 if size <= true else size / true, batch_size, 1.0)
    assert found is not None and batch_size <= found <= true
    assert found >= 0.7 * true


def test_the_next_guess_is_where_a_line_reaches_the_memory() -> None:
    assert next_guess(100, 0.6, 0.2) == pytest.approx(200)
