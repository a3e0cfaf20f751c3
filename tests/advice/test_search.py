"""The largest batch: one that fits, at least the one at hand, close to the true one, in a few plans."""

from hypothesis import given
from hypothesis import strategies as st

from membench.advice.search import DIGITS, MOST, TRIALS, largest_batch, rounded


@given(st.integers(1, MOST))
def test_a_size_is_rounded_down_by_less_than_a_part_in_32(size: int) -> None:
    assert size * (1 - 2 ** (1 - DIGITS)) < rounded(size) <= size
    assert rounded(rounded(size)) == rounded(size)


@given(
    st.integers(1, 500),
    st.floats(1.0, 30.0),
    st.integers(0, 10_000),
    st.integers(1, 100),
    st.floats(1.0, 1.3),
)
def test_it_fits_and_is_close_to_the_largest(
    batch_size: int, times: float, constant: int, slope: int, wasted: float
) -> None:
    room_bytes = int((constant + slope * batch_size) * times * wasted) + 1
    planned: list[int] = []

    def share(size: int) -> float:
        planned.append(size)
        return room_bytes / ((constant + slope * size) * wasted)

    found = largest_batch(lambda size: constant + slope * size, share, room_bytes, batch_size)
    true = int((room_bytes / wasted - constant) / slope)
    assert len(planned) <= TRIALS
    assert batch_size <= found <= max(batch_size, true)
    assert found == batch_size or found >= 0.8 * min(true, MOST)
