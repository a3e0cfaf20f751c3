"""Part c: steps of plain PyTorch that were predicted before, from a commit.

40 eager, 20 compiled, 10 of language models.

    python -m benchmarks.gpu_visit.league        predicts all steps on both cards, writes steps/predicted.csv (minutes)

None of the networks of `steps/images.csv` is among the 56 steps of 27 November. Those of `steps/language.csv` are
others as well, or the same network compiled. The descriptions are those of data sets of `experiments/validation`, which
the rows become when they have been measured.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_steps.run import is_compiled, measured
from benchmarks.gpu_visit.rows import NotRun, Rows, Values, Visit
from membench.core.configuration import ROOT, read_options
from membench.core.files import write_whole
from membench.lab.validation.predicting import predict_rows
from membench.lab.validation.predictions import Predictions, RowPrediction
from membench.lab.validation.rows import Row, read_rows
from membench.sweep.results.provenance import git

FOLDER = Path(__file__).parent / "steps"
PREDICTED = FOLDER / "predicted.csv"
DEVICES = ("h200", "h100")
"""H100 of 80 GB."""
QUANTITIES = {"step_time_s": "step_time_ms"} | {name: name for name in ("allocated_bytes", "reserved_bytes")}
COLUMNS = ("step", "device", *QUANTITIES.values(), "reason")


def run(visit: Visit, rows: Rows) -> None:
    """Measure the league's steps, eager ones first: compiling needs all cores."""
    predicted = {} if visit.is_small else read_predicted()
    steps = small_steps() if visit.is_small else league_steps()
    due = [step for step in steps if name_of(step) not in rows.done()]
    if visit.device.type != "cuda":
        for step in filter(is_compiled, due):
            rows.measure(name_of(step), _not_compiled)
        due = [step for step in due if not is_compiled(step)]
    for step, future in measured(due, visit.device.type):
        rows.measure(
            name_of(step),
            lambda step=step, future=future: {**future.result(), "predicted": predicted.get(name_of(step), {})},  # type: ignore[misc]
        )


def _not_compiled() -> Values:
    raise NotRun("steps are compiled on a GPU alone; on the CPU that takes a minute each")


def name_of(step: Row) -> str:
    """Return the name of a step: network, batch, precision, kernels."""
    described = step.step
    kernels = described.get("kernels", "eager")
    return f"{step.network} {step.batch_size} {described['precision'] or 'default'} {kernels}"


def league_steps(device: str = DEVICES[0]) -> list[Row]:
    """Return the league's steps on a device: plain, of language models, compiled."""
    steps = [replace(row, device=device) for table in ("images", "language") for row in described_steps(table)]
    return sorted(steps, key=is_compiled)


def described_steps(table: str) -> Sequence[Row]:
    return read_rows(read_options(FOLDER / f"{table}.yaml"), FOLDER / f"{table}.csv")


def small_steps() -> list[Row]:
    """Return a step of milliseconds, eager and compiled."""
    options = {**read_options(FOLDER / "language.yaml"), "optimizer": "momentum"}
    return list(read_rows(options, FOLDER / "small.csv"))


def predicted_rows(steps: Sequence[Row], predictions: Sequence[RowPrediction]) -> Iterator[dict[str, Any]]:
    """Yield the lines of the table of predictions."""
    for step, prediction in zip(steps, predictions, strict=True):
        line: dict[str, Any] = {"step": name_of(step), "device": step.device, "reason": prediction.reason}
        for quantity, column in QUANTITIES.items():
            if (value := prediction.values.get(quantity)) is not None:
                line[column] = round(value * 1e3, 4) if column.endswith("_ms") else int(value)
        yield line


def read_predicted() -> dict[str, dict[str, Values]]:
    """Return the committed predictions by step and device."""
    found: dict[str, dict[str, Values]] = {}
    with PREDICTED.open() as file:
        for line in csv.DictReader(each for each in file if not each.startswith("#")):
            numbers = {column: float(line[column]) for column in QUANTITIES.values() if line[column]}
            found.setdefault(line["step"], {})[line["device"]] = numbers
    return found


def predict() -> None:
    """Predict all steps, and write the table; predictions that were made before are kept."""
    steps = [step for device in DEVICES for step in league_steps(device)]
    kept = Predictions(ROOT / "outputs" / "gpu_visit" / "predictions", predict_rows)
    lines = predicted_rows(steps, kept.of(steps, workers=1))
    write_whole(PREDICTED, text_of(lines))


def text_of(lines: Iterator[dict[str, Any]]) -> str:
    """Return the table, which names the commit that predicted it."""
    file = StringIO()
    file.write(f"# Predicted by commit {git('rev-parse', 'HEAD')} with torch {torch.__version__}\n")
    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return file.getvalue()


if __name__ == "__main__":
    predict()
