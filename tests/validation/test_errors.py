"""Errors of predictions and their distribution."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.validation.dataset import DataSet
from membench.validation.errors import Comparison, Distribution, family, summaries
from membench.validation.predictions import RowPrediction
from membench.validation.rows import Row


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
def test_a_ladder_is_right_if_the_batch_fits_and_the_next_does_not(
    fits: bool, next_fits: bool, right: bool
) -> None:
    prediction = RowPrediction({"step_time_s": 1.1}, fits, next_fits)
    assert Comparison(row("a", next_batch_size=12), prediction, is_fitted=False).fits_right is right


def test_rows_that_were_fitted_are_not_judged() -> None:
    wrong, right = RowPrediction({"step_time_s": 3.0}), RowPrediction({"step_time_s": 1.0})
    rows = row("resnet18"), row("vgg16"), row("gone")
    compared = [
        Comparison(rows[0], wrong, is_fitted=False),
        Comparison(rows[1], right, is_fitted=True),
        Comparison(rows[2], RowPrediction(reason="there is none"), is_fitted=False),
    ]
    found = {line.part: line for line in summaries(DataSet("mine", "", "", rows), compared)}
    judged, fitted = found["judged"].ours, found["fitted"].ours
    assert judged and judged.median == 2.0 and found["judged"].not_run == 1
    assert fitted and fitted.median == 0.0
    assert found["family: resnet"].ours and "family: vgg" not in found


def test_a_family_is_the_letters_before_the_size() -> None:
    names = ("tf_efficientnet_b0", "efficientnet_b7", "resnet50", "swsl_resnet18", "vit_base_patch16_224")
    assert [family(name) for name in names] == ["efficientnet", "efficientnet", "resnet", "resnet", "vit"]
