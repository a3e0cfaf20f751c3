"""Sizes as users write them, and as they are printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.units import GIB, KIB, MIB, format_bytes, format_seconds, parse_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("200MB", 200 * MIB),
        ("200 MiB", 200 * MIB),
        ("200 mb", 200 * MIB),
        ("12GB", 12 * GIB),
        ("0.5 GB", GIB // 2),
        (".5 KB", KIB // 2),
        ("1 TB", 1024 * GIB),
        ("4096", 4096),
        ("4096 B", 4096),
        ("1e9", 10**9),
        ("1.5e9", 1_500_000_000),
        ("1e+20", 10**20),
        (4096, 4096),
        (1e9, 10**9),
        (1e20, 10**20),
    ],
)
def test_a_size_has_one_meaning(text: str | float, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.5", "'0.5' is not a whole number of bytes; add the unit that you mean, as in '0.5 GB'"),
        (1.5, "1.5 is not a whole number of bytes"),
        ("0.5 B", "'0.5 B' is not a whole number of bytes"),
        ("0", "'0' is not a positive size"),
        ("0.0001 KB", "'0.0001 KB' is not a positive size"),
        ("-1 MB", "'-1 MB' is not a size; write it as '12 GB', '200 MB' .1 MB is 1024 x 1024 bytes. or a number"),
        ("1 EB", "'1 EB' is not a size"),
        ("1e-3 GB", "is not a size"),
        ("nan", "is not a size"),
        (float("inf"), "is not a size"),
        (True, "True is not a size"),
        ([1], "is not a size"),
    ],
)
def test_what_has_no_meaning_is_refused(text: str | float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_bytes(text)


@given(st.integers(1, 2**50))
def test_what_is_printed_is_read_as_the_same_size_within_its_last_digit(size_bytes: int) -> None:
    printed = format_bytes(size_bytes)
    unit = {"B": 1, "KB": KIB, "MB": MIB, "GB": GIB}[printed.split()[1]]
    assert abs(parse_bytes(printed.replace(",", "")) - size_bytes) <= 0.051 * unit


@given(st.floats(1e-6, 1e5))
def test_a_duration_has_three_digits_without_an_exponent(time_s: float) -> None:
    printed = format_seconds(time_s)
    number, unit = printed.split()
    assert "e" not in number
    assert float(number.replace(",", "")) * {"s": 1, "ms": 1e-3, "us": 1e-6}[unit] == pytest.approx(time_s, rel=0.051)


def test_just_below_a_second_is_a_second() -> None:
    assert [format_seconds(time_s) for time_s in (0.9994, 0.99951, 0.99951e-3)] == ["999 ms", "1 s", "1 ms"]
