"""Intervals of predictions, calibrated on rows on which no constant was fitted: ``conf/intervals.yaml``.

    log(measured / predicted) of judged rows -> weighted quantiles for each kind of step -> moved outward

A data set has the same weight however many rows it has, and `SHARE` of it for each respect in which its rows are of
another kind. A new data set differs more from few others than their quantiles show. These are therefore moved away
from the median until a fraction `INSIDE` of rows lies in intervals made without their data set: conformalized quantile
regression (Romano, Patterson, Candes, NeurIPS 2019) with a data set as the unit that is left out.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from membench.core.files import write_whole
from membench.lab.validation.dataset import DataSet
from membench.lab.validation.errors import Comparison
from membench.lab.validation.predicting import STRATEGY
from membench.lab.validation.rows import Row
from membench.steps.predicted.intervals import INSIDE, MEMORY, PROBABILITIES, TIME, Interval

SHARE = 0.5
"""Of the weight of a data set's rows, for each respect in which they are of another kind."""
RESPECTS = {TIME: ("trains", "several", "copies", "measured"), MEMORY: ("several",)}
"""What of a `StepKind` tells rows of a quantity apart. No published row with a memory is of inference or copies."""
_QUANTITIES = {TIME: TIME} | dict.fromkeys(("allocated_bytes", "reserved_bytes", "used_bytes"), MEMORY)
_HEAD = (
    "# Written by `membench validate`: quantiles of measured over predicted values of rows on which no constant was\n"
    "# fitted (membench/lab/validation/intervals.py), at the probabilities of membench/steps/predicted/intervals.py;\n"
    "# devices with published step times.\n"
)


def errors_of(compared: Sequence[tuple[DataSet, Sequence[Comparison]]]) -> pd.DataFrame:
    """Return the judged rows with both values, one for each quantity: data set, number, kind and ``log_ratio``.

    Its column ``of`` is the quantity whose intervals they have, `TIME` or `MEMORY`.
    """
    lines = [
        {"dataset": data.name, "number": each.row.number, "quantity": name, "of": of, "device": each.row.device}
        | {**_kind(each.row), "log_ratio": -float(np.log1p(error))}
        for data, rows in compared
        for each in rows
        for name, of in _QUANTITIES.items()
        if name not in each.fitted and (error := each.error(name)) is not None
    ]
    columns = ("dataset", "number", "quantity", "of", "device", *RESPECTS[TIME][:3], "log_ratio")
    return pd.DataFrame(lines, columns=columns)


def _kind(row: Row) -> dict[str, bool]:
    """Return what is known of a row's kind without the other data sets."""
    step = row.step
    strategy = step.get("strategy", STRATEGY)
    return {
        "trains": step["model"].get("loss") is not None,
        "several": prod(int(size) for size in step.get("ranks", {}).get("parallel", {}).values()) > 1,
        "copies": (strategy if isinstance(strategy, str) else strategy["name"]) != STRATEGY,
    }


def bounds_left_out(errors: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with ``low`` and ``high``: bounds of measured over predicted values made without their data set.

    Neither its quantiles nor the widening of a row's interval know the row's data set.
    """
    parts = []
    for of, respects in RESPECTS.items():
        rows = errors[errors["of"] == of]
        for name in rows["dataset"].unique():
            own, others = rows[rows["dataset"] == name], rows[rows["dataset"] != name]
            if others["dataset"].nunique() > 1:
                low, high = _bounds(own, others, respects)
                widening = _widening(others, respects)
                parts.append(own.assign(low=np.exp(low - widening), high=np.exp(high + widening)))
    return pd.concat(parts) if parts else errors.iloc[:0].assign(low=np.nan, high=np.nan)


def with_intervals(
    compared: Sequence[tuple[DataSet, Sequence[Comparison]]],
) -> list[tuple[DataSet, Sequence[Comparison]]]:
    """Return comparisons with the intervals of judged rows, each made without the row's data set."""
    intervals: defaultdict[tuple[str, int], dict[str, Interval]] = defaultdict(dict)
    columns = ["dataset", "number", "quantity", "low", "high"]
    for name, number, quantity, low, high in bounds_left_out(errors_of(compared))[columns].itertuples(index=False):
        intervals[name, number][quantity] = low, high

    def of(data: DataSet, each: Comparison) -> Comparison:
        values, bounds = each.prediction.values, intervals[data.name, each.row.number]
        of_row = {name: (values[name] * low, values[name] * high) for name, (low, high) in bounds.items()}
        return replace(each, intervals=of_row)

    return [(data, [of(data, each) for each in rows]) for data, rows in compared]


def _bounds(rows: pd.DataFrame, others: pd.DataFrame, respects: Sequence[str]) -> np.ndarray:
    """Return the lower and the upper bound of each row's ``log_ratio`` by the quantiles of others, before widening."""
    known, wanted = _kinds(others, others)[list(respects)], _kinds(rows, others)[list(respects)].to_numpy()
    kinds, inverse = np.unique(wanted, axis=0, return_inverse=True)
    found = np.array(
        [_quantiles(others, known.to_numpy(), kind, ((1 - INSIDE) / 2, (1 + INSIDE) / 2)) for kind in kinds]
    )
    return found[inverse].T


def _widening(rows: pd.DataFrame, respects: Sequence[str]) -> float:
    """Return by how much bounds have to move outward for a fraction `INSIDE` of rows to lie between them.

    The bounds of a row are those made without its data set; they do not move inward.
    """
    outside = []
    for name in rows["dataset"].unique():
        own = rows[rows["dataset"] == name]
        low, high = _bounds(own, rows[rows["dataset"] != name], respects)
        outside.append(np.maximum(low - own["log_ratio"], own["log_ratio"] - high))
    return max(0.0, float(np.quantile(np.concatenate(outside), INSIDE, method="inverted_cdf")))


def _kinds(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return rows with ``measured``: whether another data set among `others` has rows of their device."""
    pairs = others[["device", "dataset"]].drop_duplicates()
    sets = pairs["device"].value_counts()
    own = pd.MultiIndex.from_frame(rows[["device", "dataset"]]).isin(pd.MultiIndex.from_frame(pairs))
    return rows.assign(measured=rows["device"].map(sets).fillna(0).to_numpy() > own)


def _quantiles(
    rows: pd.DataFrame, kinds: np.ndarray, kind: Sequence[bool], probabilities: Sequence[float]
) -> np.ndarray:
    """Return quantiles of ``log_ratio`` for a kind.

    Args:
        kinds: that of each row, as `kind` in the respects that count.
    """
    _, codes, sizes = np.unique(rows["dataset"], return_inverse=True, return_counts=True)
    weights = SHARE ** (kinds != kind).sum(axis=1) / sizes[codes]
    return np.quantile(rows["log_ratio"], probabilities, weights=weights, method="inverted_cdf")


def calibrated(errors: pd.DataFrame) -> dict[str, Any]:
    """Return the content of ``conf/intervals.yaml``."""
    timed = errors[errors["of"] == TIME]
    return {
        "devices": sorted(timed["device"].unique().tolist()),
        **{of: _calibrated(errors[errors["of"] == of], respects) for of, respects in RESPECTS.items()},
    }


def _calibrated(rows: pd.DataFrame, respects: Sequence[str]) -> list[dict[str, Any]]:
    kinds = _kinds(rows, rows)[list(respects)].to_numpy()
    outward = np.sign(np.array(PROBABILITIES) - 0.5) * _widening(rows, respects)
    found = []
    for kind in product((True, False), repeat=len(respects)):
        ratios = np.exp(_quantiles(rows, kinds, kind, PROBABILITIES) + outward)
        found.append({**dict(zip(respects, kind, strict=True)), "quantiles": ratios.round(4).tolist()})
    return found


def write_intervals(compared: Sequence[tuple[DataSet, Sequence[Comparison]]], path: Path) -> None:
    """Write ``conf/intervals.yaml``."""
    content = calibrated(errors_of(compared))
    write_whole(path, _HEAD + yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None))
