"""Intervals are those of the committed rows, and a row's interval does not depend on its own data set."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core import configuration
from membench.core.configuration import ROOT, read_options
from membench.core.tables import read_csv
from membench.lab.cli.validate import DATASETS, RESULTS
from membench.lab.validation.dataset import DataSet, known_datasets, load_dataset
from membench.lab.validation.errors import Comparison, comparisons
from membench.lab.validation.intervals import bounds_left_out, calibrated, errors_of, with_intervals
from membench.lab.validation.predicting import predictor_of
from membench.lab.validation.predictions import RowPrediction
from membench.lab.validation.rows import Row
from membench.lab.validation.tables import read_predictions
from membench.steps.predicted.intervals import INSIDE, INTERVALS, MEMORY, PROBABILITIES, TIME, has_published_times

COLUMNS = ["trains", "several", "copies"]
PAIRS = st.lists(st.floats(-1, 1), min_size=2, max_size=2)


def committed() -> list[tuple[DataSet, Sequence[Comparison]]]:
    datasets = [load_dataset(DATASETS, name) for name in known_datasets(DATASETS) if (RESULTS / f"{name}.csv").exists()]
    return [(data, comparisons(data, data.rows, iter(read_predictions(data, RESULTS)))) for data in datasets]


def errors(by_dataset: Sequence[Sequence[float]], **kind: bool) -> pd.DataFrame:
    lines = [
        {"dataset": f"set{index}", "number": number, "quantity": of, "of": of, "device": "t4"}
        | {name: kind.get(name, name == "trains") for name in COLUMNS}
        | {"log_ratio": log_ratio}
        for index, rows in enumerate(by_dataset)
        for number, log_ratio in enumerate(rows)
        for of in (TIME, MEMORY)
    ]
    return pd.DataFrame(lines)


def quantiles(frame: pd.DataFrame) -> list[list[float]]:
    return [kind["quantiles"] for kind in calibrated(frame)[TIME]]


def test_the_file_follows_from_the_committed_tables() -> None:
    assert calibrated(errors_of(committed())) == read_options(INTERVALS)


@pytest.mark.parametrize("quantities", [{TIME}, {"allocated_bytes", "reserved_bytes", "used_bytes"}])
def test_nine_of_ten_committed_rows_lie_in_intervals_made_without_their_data_set(quantities: set[str]) -> None:
    rows = [
        row
        for name in known_datasets(DATASETS)
        for row in read_csv(RESULTS / f"{name}.csv")
        if row["quantity"] in quantities and row["interval_low"]
    ]
    inside = [float(row["interval_low"]) <= float(row["measured_value"]) <= float(row["interval_high"]) for row in rows]
    assert abs(sum(inside) / len(inside) - INSIDE) <= 0.04 and len(rows) > 100


@settings(max_examples=10, deadline=None)
@given(st.lists(PAIRS, min_size=4, max_size=4))
def test_rows_that_occur_twice_and_the_order_of_rows_change_nothing(by_dataset: list[list[float]]) -> None:
    assert quantiles(errors([[*rows, *reversed(rows)] for rows in by_dataset])) == quantiles(errors(by_dataset))


@settings(max_examples=10, deadline=None)
@given(st.lists(PAIRS, min_size=3, max_size=5), st.floats(1.5, 3))
def test_larger_errors_make_wider_intervals(by_dataset: list[list[float]], factor: float) -> None:
    narrow, wide = (quantiles(errors(np.multiply(by_dataset, by).tolist()))[0] for by in (1, factor))
    assert wide[-1] / wide[0] >= narrow[-1] / narrow[0] * (1 - 1e-3)
    assert wide == sorted(wide) and len(wide) == len(PROBABILITIES)


def test_an_interval_does_not_know_the_rows_data_set() -> None:
    others = [[0.0, 0.1], [0.2, -0.1], [0.05, 0.15]]
    low, high = (bounds_left_out(errors([*others, own])) for own in ([0.0], [9.0]))
    columns = ["low", "high"]
    own = low["dataset"] == "set3"
    assert low[own][columns].equals(high[own][columns]) and not low[~own][columns].equals(high[~own][columns])


def test_rows_of_the_own_kind_count_more() -> None:
    of_several = errors([[0.5, 0.6]] * 3, several=True).replace({"dataset": {"set0": "a", "set1": "b", "set2": "c"}})
    found = calibrated(pd.concat([errors([[0.0, 0.1]] * 3), of_several]))[TIME]
    medians = {kind["several"]: kind["quantiles"][PROBABILITIES.index(0.5)] for kind in found if kind["trains"]}
    assert medians[True] > medians[False]


@pytest.mark.parametrize("name", ["schedtune", "timm_compiled"])
def test_a_row_is_of_the_kind_of_its_prediction(name: str) -> None:
    data = load_dataset(DATASETS, name)
    row = min((row for row in data.rows if not row.reason), key=lambda row: row.batch_size)
    kind = predictor_of(row.step).on(configuration.load("device", row.device)).kind
    of_row = errors_of([(data, [Comparison(row, RowPrediction(dict(row.measured)))])]).iloc[0]
    assert {name: of_row[name] for name in COLUMNS} == {name: getattr(kind, name) for name in COLUMNS}
    assert kind.measured is has_published_times(row.device)


def test_only_judged_rows_have_intervals() -> None:
    step = {"batch_size": 8, "model": {"loss": {}}}
    rows = [Row(number, "resnet18", "t4", {TIME: 1.0}, None, step) for number in range(2)]
    compared = [
        (
            DataSet(name, name, "somewhere", tuple(rows)),
            [
                Comparison(row, RowPrediction({TIME: 1.1 + 0.1 * row.number}), frozenset([TIME][: row.number]))
                for row in rows
            ],
        )
        for name in ("a", "b", "c")
    ]
    for _, found in with_intervals(compared):
        judged, fitted = found
        low, high = judged.intervals[TIME]
        assert low <= high and judged.is_inside(TIME) is (low <= 1.0 <= high)
        assert not fitted.intervals and fitted.is_inside(TIME) is None
    assert ROOT / "conf" in INTERVALS.parents
