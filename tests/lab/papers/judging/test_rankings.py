"""The orders that a paper states: which pairs count, which agree, and Kendall's tau."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, kendalltau

from membench.core.errors import MembenchError
from membench.core.record import Outcome
from membench.lab.papers.judging.rankings import (
    COMPARED,
    MARGINS,
    NO_MARGIN,
    Agreement,
    agreement,
    is_predicted,
    margins,
    rankings,
)
from membench.lab.papers.reading.experiment import Order, Paper, Remark, Selection, TrainedQuantity
from membench.lab.papers.reading.loader import load_paper
from membench.lab.papers.reading.quantities import Result
from tests.helpers.lab.papers import EXPERIMENTS, PAPER, ROW, answer, numbers_of

EVERY = Order("memory", Selection({}), across=(("system",),), best="lower")


def _lines(results: Sequence[Result], order: Order = EVERY, paper: Paper = PAPER) -> list[dict[str, str]]:
    return rankings(numbers_of(replace(paper, orders=(order,)), results))


def _of_systems(papers: Sequence[float], ours: Sequence[float | None], half_unit: float = 0.5) -> list[Result]:
    rows = (
        replace(ROW, system=f"system {line}", value=value, half_unit=half_unit, line=line)
        for line, value in enumerate(papers, start=2)
    )
    outcomes = (Outcome.OUT_OF_MEMORY if value is None else Outcome.OK for value in ours)
    return [Result(row, answer(), value, outcome) for row, value, outcome in zip(rows, ours, outcomes, strict=True)]


def test_a_pair_agrees_if_its_order_is_the_papers() -> None:
    *pairs, best = _lines(_of_systems([100, 200, 300], [10, 30, 20]))
    assert [(line["paper_order"], line["our_order"], line["agree"]) for line in pairs] == [
        ("<", "<", "true"),
        ("<", "<", "true"),
        ("<", ">", "false"),
    ]
    assert (best["kind"], best["first"], best["second"], best["agree"]) == ("best", "system 2", "system 2", "true")
    assert (agreement(pairs).count, agreement(pairs).tau) == ("2 of 3", pytest.approx(1 / 3))


@pytest.mark.parametrize(("other", "count"), [(100.0, 0), (100.5, 0), (101.0, 1)])
def test_a_pair_closer_than_the_papers_rounding_does_not_count(other: float, count: int) -> None:
    lines = _lines(_of_systems([100, other], [1, 2]))
    assert [line["kind"] for line in lines] == ["pair", "best"][: 2 * count]


def test_ties_and_what_does_not_fit_here_neither_agree_nor_are_opposite() -> None:
    lines = [line for line in _lines(_of_systems([1, 10, 20], [7, 7, None])) if line["kind"] == "pair"]
    assert [line["our_order"] for line in lines] == ["=", "", ""]
    assert lines[-1]["our_second"] == "out of memory"
    found = agreement(lines)
    assert (found.pairs, found.agree, found.opposite, found.tau) == (3, 0, 0, 0)


def test_what_trainings_leave_undecided_has_an_order_and_no_number_here() -> None:
    first, second = _of_systems([1, 10], [1, None])
    trained = replace(second.answer, value=None, trained=TrainedQuantity("net", "accuracy", loses_to="other"))
    lines = _lines([first, replace(second, answer=trained, outcome=Outcome.OK, reason="undecided")])
    assert [(line["kind"], line["our_second"], line["agree"]) for line in lines[:1]] == [("pair", "undecided", "false")]


def test_where_nothing_fits_here_the_best_is_not_the_papers() -> None:
    [*_, best] = _lines(_of_systems([1, 10], [None, None]))
    assert (best["kind"], best["our_second"], best["agree"]) == ("best", "out of memory", "false")


@pytest.mark.parametrize(
    ("limit", "other", "order"), [("lower", 83, ">"), ("lower", 84, ""), ("upper", 83, "<"), ("upper", 82, "")]
)
def test_a_one_sided_statement_has_an_order_with_what_lies_beyond(limit: str, other: float, order: str) -> None:
    rows = [replace(ROW, value=value, half_unit=0.5, line=line) for line, value in ((2, 83.0), (3, other))]
    results = [
        Result(replace(rows[0], system="limited"), answer(limit=limit), 1.0, Outcome.OK),
        Result(rows[1], answer(), 2.0, Outcome.OK),
    ]
    assert [line["paper_order"] for line in _lines(results)] == [order][: len(order)]


def test_only_rows_that_differ_in_the_named_columns_are_compared() -> None:
    first, second = _of_systems([1, 10], [1, 10])
    elsewhere = replace(second, row=replace(second.row, model="deep"))
    assert not _lines([first, elsewhere])
    together = replace(EVERY, across=(("system", "model"),), best="")
    [line] = _lines([first, elsewhere], together)
    assert (line["first"], line["second"]) == ("system 2, small", "system 3, deep") or line["first"].startswith("small")
    assert line["compared"] == COMPARED["system"]


def test_an_order_in_words_is_judged_beside_one() -> None:
    ratio = replace(ROW, value=1.0, unit="x")
    order = Order("speed", Selection({}), in_words="above 1")
    for ours, agree in ((1.2, "true"), (1.0, "false"), (0.9, "false")):
        [line] = _lines([Result(ratio, answer(limit="lower"), ours, Outcome.OK)], order)
        assert (line["agree"], line["compared"]) == (agree, "in words")


def test_a_conversion_makes_a_number_comparable() -> None:
    rows = [
        replace(ROW, system="a", metric="time_ratio", unit="x", value=2.7, half_unit=0.05, claim_id="A1"),
        replace(ROW, system="b", metric="overhead", unit="%", value=28.0, half_unit=0.5, claim_id="A2", line=3),
    ]
    order = replace(EVERY, convert={"A2": "1 + x / 100"}, best="")
    [line] = _lines([Result(row, answer(), row.value, Outcome.OK) for row in rows], order)
    assert (line["paper_order"], line["agree"], line["paper_second"]) == (">", "true", "28 %")


def test_numbers_of_two_units_are_compared_in_one() -> None:
    rows = [
        replace(ROW, system="a", unit="GB", value=1.0, half_unit=0.01),
        replace(ROW, system="b", unit="MB", value=900.0, line=3),
    ]
    paper = replace(PAPER, units={"GB": 1024.0})
    [line, _] = _lines([Result(row, answer(), row.value, Outcome.OK) for row in rows], paper=paper)
    assert (line["paper_order"], line["our_order"], line["agree"]) == (">", ">", "true")


def test_a_pair_is_fitted_only_if_both_its_numbers_are() -> None:
    results = _of_systems([1, 10, 20], [1, 10, 20])
    paper = replace(PAPER, fitted=(Remark(Selection({"system": ("system [23]",)}), "a fit"),))
    pairs = [line for line in _lines(results, paper=paper) if line["kind"] == "pair"]
    assert [line["fitted"] for line in pairs] == ["true", "false", "false"]
    assert [is_predicted(line) for line in pairs] == [False, True, True]


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 99)),
        min_size=2,
        max_size=8,
        unique_by=(lambda p: p[0], lambda p: p[1]),
    )
)
def test_without_ties_tau_is_kendalls(values: list[tuple[int, int]]) -> None:
    papers, ours = zip(*values, strict=True)
    lines = _lines(_of_systems(papers, ours), replace(EVERY, best=""))
    assert agreement(lines).tau == pytest.approx(kendalltau(papers, ours).statistic)


def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    for path in (EXPERIMENTS / "mmcnn").glob("*.[!p]*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "rankings.yaml").write_text("orders: [{quantity: memory, where: {}, across: [unit]}]")
    with pytest.raises(MembenchError, match="memory: unit cannot be compared; system, model, batch_size, device can"):
        load_paper(tmp_path)


def test_a_pair_at_the_largest_batch_is_counted_by_both_definitions() -> None:
    """2,100 images do not fit here: ours at the largest here has the paper's order, ours at the paper's has none."""
    first, second = _of_systems([100, 200], [10, 20])
    second = replace(second, at_papers_largest=replace(second, value=None, outcome=Outcome.OUT_OF_MEMORY))
    pair, _ = _lines([first, second])
    assert (pair["agree"], pair["agree_at_papers_largest"]) == ("true", "false")
    fits = replace(second, at_papers_largest=replace(second, value=30.0))
    pair, _ = _lines([first, fits])
    assert (pair["agree"], pair["agree_at_papers_largest"]) == ("true", "true")


def test_pairs_are_counted_by_how_far_apart_the_papers_numbers_are() -> None:
    pairs = [line for line in _lines(_of_systems([100, 101.5, 104, 130], [1, 2, 4, 3])) if line["kind"] == "pair"]
    found = {name: (each.agree, each.pairs) for name, each in margins(pairs).items()}
    assert found == dict(zip([*MARGINS, NO_MARGIN], [(1, 1), (2, 2), (0, 0), (2, 3), (0, 0)], strict=True))
    limited = [line | {"margin": ""} for line in pairs]
    assert margins(limited)[NO_MARGIN].pairs == len(pairs)


@given(st.integers(0, 400), st.integers(1, 400))
def test_the_interval_contains_the_share_and_is_that_of_scipy(agree: int, more: int) -> None:
    pairs = agree + more
    low, high = Agreement(pairs, agree, 0).interval
    expected = binomtest(agree, pairs).proportion_ci(0.95, method="wilson")
    assert (low, high) == (pytest.approx(expected.low, abs=1e-4), pytest.approx(expected.high, abs=1e-4))
    assert 0 <= low <= agree / pairs <= high <= 1 + 1e-9


def test_pairs_that_random_numbers_order_as_well_are_noise() -> None:
    counts = (9, 5), (19, 2), (32, 19), (40, 28), (371, 344)
    assert [Agreement(*each, 0).reading for each in counts] == ["too few", "noise", "noise", "", ""]


def test_percentages_are_apart_by_points() -> None:
    """Overheads of 25 and 29 % are times of 1.25 and 1.29."""
    results = [replace(each, row=replace(each.row, unit="%")) for each in _of_systems([25, 29], [25, 29])]
    assert _lines(results)[0]["margin"] == "0.0400"
    convert = {"": "1 + x / 100"}
    assert _lines(results, replace(EVERY, convert=convert))[0]["margin"] == "0.0310"
