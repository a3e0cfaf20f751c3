import pytest

from membench.execution.limits import largest


@pytest.mark.parametrize("limit", [1, 2, 3, 31, 32, 33, 1000, 4096])
@pytest.mark.parametrize("step", [1, 16])
def test_finds_the_largest_multiple_that_fits(limit: int, step: int) -> None:
    expected = limit // step * step or None
    assert largest(lambda number: number <= limit, step=step, limit=1 << 16) == expected


def test_asks_a_logarithmic_number_of_times_and_never_twice() -> None:
    asked: list[int] = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= 30_000

    assert largest(fits) == 30_000
    assert len(asked) == len(set(asked)) <= 2 * 16


def test_stops_at_its_limit() -> None:
    assert largest(lambda _: True, limit=100) == 100
    assert largest(lambda _: True, step=16, limit=100) == 96
