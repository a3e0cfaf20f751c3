"""Errors of predictions and their distribution."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.lab.validation.dataset import DataSet
from membench.lab.validation.distribution import Distribution
from membench.lab.validation.errors import Comparison, Order, comparisons, family, order_of, summaries
from membench.lab.validation.predictions import RowPrediction
from membench.lab.validation.rows import Row


def row(network: str, measured: float = 1.0, next_batch_size: int | None = None) -> Row:
    return Row(0, network, "t4", {"step_time_s": measured}, next_batch_size, {"batch_size": 8})


@given(st.lists(st.floats(-0.9, 5), min_size=1))
def test_fractions_within_grow_and_the_median_is_below_p90(errors: list[float]) -> None:
    found = Distribution.of([*errors, None])
    assert found is not None and found.rows == len(errors)
    assert list(found.within) == sorted(found.within)
    assert found.median <= found.p90 + 1e-12
    assert abs(found.bias) <= max(map(abs, errors))


@pytest.mark.parametrize(
    ("fits", "next_fits", "right"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_ladder_is_right_if_the_batch_fits_and_the_next_does_not(fits: bool, next_fits: bool, right: bool) -> None:
    prediction = RowPrediction({"step_time_s": 1.1}, fits, next_fits)
    assert Comparison(row("a", next_batch_size=12), prediction).fits_right is right


def test_a_row_that_did_not_run_is_right_if_it_was_predicted_not_to_fit() -> None:
    refused = replace(row("a"), measured={}, fits=False)
    for fits in (True, False):
        assert Comparison(refused, RowPrediction({"step_time_s": 1.0}, fits)).fits_right is not fits


def test_a_change_is_over_the_base_and_over_its_base_where_that_is_not_run() -> None:
    first = Comparison(row("a", 2.0), RowPrediction({"step_time_s": 1.0}))
    second = Comparison(row("b", 4.0), RowPrediction(reason="it is not run"), base=first)
    third = Comparison(row("c", 3.0), RowPrediction({"step_time_s": 0.9}), base=second)
    assert first.measured_change("step_time_s") is None and second.simulated_change("step_time_s") is None
    assert third.measured_change("step_time_s") == 0.75
    assert third.simulated_change("step_time_s") == 0.9
    assert third.change_error("step_time_s") == pytest.approx(0.2)
    assert third.direction_right("step_time_s") is True
    compared = [first, second, third]
    dataset = DataSet("mine", "", "", tuple(each.row for each in compared))
    (changes,) = [line for line in summaries(dataset, compared) if line.part == "changes"]
    assert changes.ours and changes.ours.rows == 1 and changes.directions_right == 1 and changes.not_run == 1


def test_the_order_of_two_rows_is_that_of_their_rates_where_these_differ_by_a_tenth() -> None:
    """Of twice as much work in less than twice the time, the rate is higher."""
    slow, fast, close = (replace(row("a", time_s), work=work) for time_s, work in ((2.0, 1.0), (3.0, 2.0), (2.95, 2.0)))

    def order(*simulated_s: float) -> Order:
        made = [RowPrediction({"step_time_s": time_s}) for time_s in simulated_s]
        return order_of(map(Comparison, (slow, fast, close), made))

    assert order(2.0, 3.9, 3.9) == Order(pairs=2, right=2)
    assert order(2.0, 4.1, 3.9) == Order(pairs=2, right=1)
    assert order_of([Comparison(replace(slow, work=None), RowPrediction({"step_time_s": 1.0}))]).pairs == 0


def test_comparisons_find_their_base_in_any_order() -> None:
    numbered = replace(row("a"), number=0, base=1), replace(row("b"), number=1)
    made = iter([RowPrediction({"step_time_s": 1.0}), RowPrediction({"step_time_s": 2.0})])
    first, second = comparisons(DataSet("mine", "", "", numbered), numbered, made)
    assert first.base == second and second.base is None


def test_rows_that_were_fitted_are_not_judged() -> None:
    wrong, right = RowPrediction({"step_time_s": 3.0}), RowPrediction({"step_time_s": 1.0})
    rows = row("resnet18"), row("vgg16"), row("gone")
    compared = [
        Comparison(rows[0], wrong),
        Comparison(rows[1], right, frozenset({"step_time_s"})),
        Comparison(rows[2], RowPrediction(reason="there is none")),
    ]
    found = {line.part: line for line in summaries(DataSet("mine", "", "", rows), compared)}
    judged, fitted = found["judged"].ours, found["fitted"].ours
    assert judged and judged.median == 2.0 and found["judged"].not_run == 1
    assert fitted and fitted.median == 0.0
    assert found["family: resnet"].ours and "family: vgg" not in found


def test_a_family_is_the_letters_before_the_size() -> None:
    names = ("tf_efficientnet_b0", "efficientnet_b7", "resnet50", "swsl_resnet18", "vit_base_patch16_224")
    assert [family(name) for name in names] == ["efficientnet", "efficientnet", "resnet", "resnet", "vit"]
