"""The orders that a paper states: which pairs count, which agree, and Kendall's tau."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from membench.core.errors import MembenchError
from membench.core.record import Outcome
from membench.lab.papers.judging.rankings import COMPARED, agreement, is_predicted, rankings
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
