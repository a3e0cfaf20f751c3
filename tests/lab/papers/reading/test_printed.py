"""Printed numbers: digits that can be compared with the paper's, and never a deviation that looks like none."""

from decimal import Decimal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from membench.core.tables import format_number
from membench.lab.papers.judging.verdicts import TOLERANCE
from membench.lab.papers.reading.printed import format_exact, format_rounded

NUMBERS = st.floats(min_value=1e-4, max_value=1e7).map(format_number)


@pytest.mark.parametrize(
    ("value", "papers", "printed"),
    [
        ("3.17411", "2.3", "3.17 x"),
        ("46.0225", "70", "46.0 x"),
        ("2.65717", "2", "2.7 x"),
        ("0.943705", "0.7", "0.94 x"),
        ("0.19501", "9.05", "0.195 x"),
        ("1081.33", "11.3", "1,081 x"),
        ("2.91325", "2.373", "2.913 x"),
        ("9052.7", "10104", "9,053 x"),
        ("169167", "191760", "169,167 x"),
        ("-64.4346", "24", "-64.4 x"),
        ("0.00123", "9.05", "0.0012 x"),
        ("128", "256", "128 x"),
        ("0", "17.28", "0 x"),
        ("32.441", "", "32.44 x"),
        ("", "3", ""),
    ],
)
def test_a_number_has_one_digit_more_than_the_papers(value: str, papers: str, printed: str) -> None:
    assert format_rounded(value, "x", papers=papers) == printed


def test_the_papers_number_keeps_all_its_digits() -> None:
    assert format_exact("191760", "s") == "191,760 s"
    assert format_exact("27.343", "s") == "27.343 s"
    assert format_exact("", "s") == ""


@given(NUMBERS, NUMBERS)
def test_a_deviating_number_is_printed_unlike_the_number_of_the_paper(ours: str, papers: str) -> None:
    assume(abs(Decimal(ours) - Decimal(papers)) > Decimal(TOLERANCE) * Decimal(papers))
    assert format_rounded(ours, "", papers=papers) != format_exact(papers, "")


@given(NUMBERS, NUMBERS)
def test_what_is_printed_is_within_five_percent(ours: str, papers: str) -> None:
    printed = Decimal(format_rounded(ours, "", papers=papers).replace(",", ""))
    assert abs(printed - Decimal(ours)) <= Decimal("0.05") * Decimal(ours)
    digits, usual = len(printed.as_tuple().digits), len(Decimal(papers).as_tuple().digits) + 1
    carried = printed.adjusted() - Decimal(ours).adjusted()  # 0.996 is printed as 1.00
    assert digits <= max(2, usual, len(str(int(Decimal(ours))))) + carried
