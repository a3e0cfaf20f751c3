"""The budgets of a frontier."""

from hypothesis import given
from hypothesis import strategies as st

from membench.core.record import Outcome, Record
from membench.sweep.frontier import between, least_budget

SIZES = st.integers(1, 1 << 40)


@given(SIZES, SIZES, st.integers(1, 30))
def test_budgets_rise_from_the_least_to_the_most(first: int, second: int, count: int) -> None:
    least, most = sorted((first, second))
    sizes = between(least, most, count)
    assert len(sizes) == count
    assert sizes == sorted(sizes)
    assert sizes[-1] == most
    assert count == 1 or sizes[0] == least


def record(budget_bytes: int, needed_bytes: int) -> Record:
    cell = {"backend": {"name": "simulated"}, "budget": budget_bytes}
    outcome = Outcome.OK if budget_bytes >= needed_bytes else Outcome.INFEASIBLE
    made = Record.of_failure(cell, outcome, "")
    made.metrics.update({"oracular_step_time_s": 1.0} if outcome is Outcome.OK else {})
    return made


@given(SIZES, SIZES, SIZES)
def test_the_least_budget_is_kept_and_closer_to_what_is_needed(first: int, second: int, third: int) -> None:
    infeasible, needed, kept = sorted((first, second, third))
    found, tried = least_budget(lambda budget: record(budget, needed), infeasible, kept)
    assert needed <= found <= kept
    assert all(infeasible <= each.configuration["budget"] <= kept for each in tried)
