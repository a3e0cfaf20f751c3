import pytest

from membench.sweep.limits import by_line, largest


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


@pytest.mark.parametrize("limit", [1, 15, 16, 17, 33, 1000, 4096])
@pytest.mark.parametrize("guess", [1, 16, 40, 1000, 5000, 1 << 20])
@pytest.mark.parametrize("step", [1, 16])
def test_a_guess_does_not_change_the_result(limit: int, guess: int, step: int) -> None:
    expected = limit // step * step or None
    assert largest(lambda number: number <= limit, step=step, limit=1 << 16, guess=guess) == expected


def test_a_right_guess_is_confirmed_by_two_questions() -> None:
    asked: list[int] = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= 4801

    assert largest(fits, step=16, guess=4805) == 4800
    assert asked == [4800, 4816]


def test_a_line_through_two_points_reaches_the_capacity() -> None:
    assert by_line((16, 1000.0), (32, 1800.0), 5000.0) == 96
    assert by_line((16, 1000.0), (32, 1000.0), 5000.0) == 32  # does not grow: nothing is predicted
