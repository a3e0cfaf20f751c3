"""Predict the tables of two papers before their values are read.

    python -m benchmarks.blind.predict                       every paper
    python -m benchmarks.blind.predict capuchin              one
    python -m benchmarks.blind.predict capuchin C-OS C-OM    some of its rows, printed and not written

Reads benchmarks/blind/PAPER.yaml, writes results/blind/PAPER.csv.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml

from benchmarks.blind.cells import Case
from benchmarks.blind.quantities import QUANTITIES
from membench.core.configuration import ROOT, read
from membench.core.errors import MembenchError, one_line
from membench.core.tables import write_csv
from membench.lab.papers.reading.loader import merged
from membench.sweep.largest_batch import SearchError

DESCRIBED = Path(__file__).parent
RESULTS = ROOT / "results" / "blind"
PAPERS = ("capuchin", "superneurons")
GIVEN = ("row_id", "table", "network", "method", "quantity", "unit", "input")
COLUMNS = (*GIVEN, "predicted", "note")

Row = dict[str, str]


def main(arguments: Sequence[str]) -> None:
    torch.set_num_threads(1)
    paper, *row_ids = arguments or ("",)
    for name in (paper,) if paper else PAPERS:
        described = described_paper(name)
        rows = list(predicted_rows(described, row_ids))
        if not row_ids:
            write_csv(pd.DataFrame(rows, columns=COLUMNS, dtype=object), RESULTS / f"{name}.csv")


def described_paper(name: str) -> dict[str, Any]:
    """Return a paper's rows, and the readings by which they are predicted."""
    found: dict[str, Any] = yaml.safe_load((DESCRIBED / f"{name}.yaml").read_text())
    return found


def predicted_rows(described: Mapping[str, Any], row_ids: Sequence[str] = ()) -> Iterable[Row]:
    """Yield a paper's rows with their predictions; rows of one case and quantity are computed once.

    Args:
        row_ids: identifiers of rows to predict; all if there are none.
    """
    known: dict[str, Row] = {}
    for row in described["rows"]:
        if row_ids and row["row_id"] not in row_ids:
            continue
        key = str({name: row.get(name) for name in ("network", "method", "measure", "batch_size", "note")})
        if key not in known:
            known[key] = predicted(described, row)
        result = {name: str(row[name]) for name in GIVEN} | known[key]
        print(*result.values(), sep=", ", flush=True)
        yield result


def predicted(described: Mapping[str, Any], row: Mapping[str, Any]) -> Row:
    """Return a row's prediction, or the reason why there is none, and its note."""
    if reason := row.get("not_run"):
        return {"predicted": "", "note": f"not run: {reason}"}
    method = described["methods"][row["method"]]
    device = merged(read("device", described["device"]), described.get("device_set", {}))
    found: list[float | None] = []
    for each in method.get("greater_of", [row["method"]]):
        case = Case(described["networks"][row["network"]], described["methods"][each], device)
        try:
            found.append(QUANTITIES[row["measure"]](case, row.get("batch_size")))
        except (SearchError, MembenchError) as error:
            return {"predicted": "", "note": f"not run: {one_line(error)}"}
    values = [value for value in found if value is not None]
    note = row.get("note", "")
    if not values:
        return {"predicted": "0", "note": "; ".join(filter(None, [note, "not even the smallest fits"]))}
    if len(found) > 1:
        modes = zip(method["greater_of"], found, strict=True)
        note = "; ".join(filter(None, [note, *(f"{mode}: {value}" for mode, value in modes)]))
    return {"predicted": shown(max(values)), "note": note}


def shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.2f}"


if __name__ == "__main__":
    main(sys.argv[1:])
