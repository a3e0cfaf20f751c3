"""Reader of `experiments/<paper>/`: the paper's vocabulary, its reference numbers and its experiments.

The format, by example:

    title: Time of 20 iterations
    answers:
      - where: {metric: time_overhead_vs_own_baseline, system: Layrub-hybrid}   # rows of reference.csv
        value: {metric: step_time_s, increase_percent: {system: Caffe}}         # of the row's own cell
      - where: {system: "MXNet*"}
        not_run: MXNet is not built yet
      - {where: {item: Table 3}, value: {metric: "self_number:{note}"}}        # {column}: the row's, up to a semicolon
    shows:
      - {item: Figure 14, metric: normalised_time, unit: x, models: table 5, systems: [Layrub-hybrid], value: {...}}

``trainings.yaml`` describes what is trained to accuracy; ``trained: {training: NAME, metric: epochs_to_accuracy}`` in
place of ``value`` answers a row with it.
"""

import csv
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

from membench.core.configuration import read_options
from membench.core.errors import MembenchError, unknown
from membench.core.packages import added_folders
from membench.core.record import LARGEST
from membench.core.units import PRINTED_UNITS
from membench.lab.papers.reading.experiment import (
    AS_CHOSEN,
    COMPARED,
    Alternative,
    Answer,
    CellChange,
    Choice,
    Experiment,
    Form,
    Order,
    Paper,
    PaperCell,
    Quantity,
    Remark,
    Row,
    Selection,
    Take,
    TrainedQuantity,
)
from membench.lab.papers.reading.printed import last_place

_CHANGEABLE = ("metric", *PaperCell.__dataclass_fields__)
"""Fields in which a quantity's cell may differ from its row's."""
_PAPER = "paper.yaml"
_NO_EXPERIMENTS = {"paper", "remarks", "choices", "trainings", "rankings"}
_ALTERNATIVES = "alternatives"
_REMARKS = {
    "remarks.yaml": ("contradictions", "inconsistencies", "causes"),
    "choices.yaml": ("fitted", "held_out", "choices", "cannot_fail"),
}
"""The lists that each file of sentences about rows may have."""


def known_papers(experiments: Path) -> list[str]:
    """Return the papers that have a folder in ``experiments``.

    Raises:
        MembenchError: there is no such folder, as for an installed package outside a clone of the repository.
    """
    if not experiments.is_dir():
        raise MembenchError(
            f"there is no folder {experiments}; run this in a clone of the repository, which has the papers' "
            f"experiments"
        )
    return sorted(path.parent.name for path in experiments.glob(f"*/{_PAPER}"))


def folder_of(word: str, experiments: Path) -> Path:
    """Return the folder of a paper: one of ``experiments`` or of an added package by its name, or any by its path.

    Modules in a folder elsewhere are imported by its name, as ``my_paper.metrics.step_metrics``.

    Raises:
        MembenchError: there is no such paper; lists the known ones.
    """
    known = {name: each / name for each in [*added_folders("experiments"), experiments] for name in known_papers(each)}
    if word in known:
        return known[word]
    folder = Path(word).resolve()
    if not (folder / _PAPER).is_file():
        raise MembenchError(f"{unknown('paper', word, known)}; or name a folder with {_PAPER}")
    if str(folder.parent) not in sys.path:
        sys.path.append(str(folder.parent))
    return folder


def results_of(paper: Path, experiments: Path, results: Path) -> Path:
    """Return the folder for results of the paper in a folder, and of the papers beside it.

    Args:
        experiments: the folder of the repository's papers.
        results: that of their results.
    """
    if paper.parent in added_folders("experiments"):  # whose folder is pip's
        return Path("outputs", "papers").resolve()
    return results if paper.parent == experiments else paper / results.name


def load_paper(directory: Path, alternative: Alternative = AS_CHOSEN) -> Paper:
    """Read ``experiments/<paper>``.

    Args:
        alternative: one of `Paper.alternatives`, under which to read it.

    Raises:
        MembenchError: a row is answered by no experiment or by two, or a file does not read as what it should be.
    """
    with reading_as("a paper's experiments", str(directory)):
        vocabulary = merged(read_options(directory / _PAPER), alternative.vocabulary)
        vocabulary["trainings"] = read_trainings(directory / "trainings.yaml")
        reference = read_reference(directory / "reference.csv")
        files = [path for path in sorted(directory.glob("*.yaml")) if path.stem not in _NO_EXPERIMENTS]
        experiments = [_experiment(path, vocabulary, reference) for path in files]
        _check_each_row_once(reference, experiments)
        experiments = [_under(alternative, each, vocabulary["sets"]) for each in experiments]
        del vocabulary["sets"]
        noted: dict[str, Any] = {}
        for name, kinds in _REMARKS.items():
            noted |= _remarks(directory / name, kinds)
        return Paper(
            name=directory.name,
            experiments=tuple(experiments),
            orders=_orders(directory / "rankings.yaml"),
            alternatives=_alternatives(directory / "choices.yaml"),
            cell_changes=alternative.cells,
            units=PRINTED_UNITS | vocabulary.pop("units", {}),
            **vocabulary,
            **noted,
        )


def _remarks(path: Path, kinds: tuple[str, ...]) -> dict[str, tuple[Remark | Choice, ...]]:
    """Read a file of sentences about rows, each list by its kind; without the file there are none."""
    content = read_options(path) if path.exists() else {}
    content.pop(_ALTERNATIVES, None)
    if unknown := content.keys() - {*kinds}:
        raise ValueError(f"{path.name} has {', '.join(unknown)}; it may have {', '.join(kinds)}")
    return {
        kind: tuple(
            (Choice if kind == "choices" else Remark)(**{**entry, "where": _selection(entry["where"])})
            for entry in entries or ()
        )
        for kind, entries in content.items()
    }


def _alternatives(path: Path) -> tuple[Alternative, ...]:
    """Read the alternatives to a paper's choices, by the name of the choice; without the file there are none."""
    content = read_options(path) if path.exists() else {}
    return tuple(
        Alternative(
            **{
                "choice": choice,
                **entry,
                "rows": _selection(entry.get("rows", {})),
                "answers": tuple(entry.get("answers", ())),
                "cells": tuple(CellChange(**each) for each in entry.get("cells", ())),
            }
        )
        for choice, entries in content.get(_ALTERNATIVES, {}).items()
        for entry in entries
    )


def _under(alternative: Alternative, experiment: Experiment, sets: dict[str, list[Any]]) -> Experiment:
    """Return an experiment with the answers of an alternative in place of its own."""
    values = [(_selection(each["where"]), _quantity(each["value"], sets)) for each in alternative.answers]
    rows = []
    for row, answer in experiment.rows:
        if answer.value and alternative.rows.matches(row):
            answer = replace(answer, value=_with_metrics(answer.value, alternative.metrics))
        for where, value in values:
            if where.matches(row):
                answer = _for_row(replace(answer, value=value), row)
        rows.append((row, answer))
    return replace(experiment, rows=tuple(rows))


def _with_metrics(value: Quantity, metrics: Mapping[str, str]) -> Quantity:
    """Return a quantity of other metrics."""
    reference = dict(value.reference)
    if "metric" in reference:
        reference["metric"] = metrics.get(reference["metric"], reference["metric"])
    return replace(value, metric=metrics.get(value.metric, value.metric), reference=reference)


def merged(options: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with changes: mappings are merged, null removes an option, and everything else is replaced."""
    both = {name: value for name, value in options.items() if changes.get(name, value) is not None or value is None}
    for name, change in changes.items():
        if change is None:
            continue
        own = both.get(name)
        both[name] = merged(own, change) if isinstance(own, dict) and isinstance(change, dict) else change
    return both


def _orders(path: Path) -> tuple[Order, ...]:
    """Read the quantities whose order a paper states; without the file there are none."""
    orders = []
    for entry in read_options(path)["orders"] if path.exists() else ():
        across = tuple(tuple(columns.split("+")) for columns in entry.get("across", ()))
        orders.append(Order(**{**entry, "where": _selection(entry["where"]), "across": across}))
        if unknown := {column for columns in across for column in columns} - {*COMPARED}:
            raise ValueError(f"{entry['quantity']}: {', '.join(unknown)} cannot be compared; {', '.join(COMPARED)} can")
    return tuple(orders)


@contextmanager
def reading_as(kind: str, place: str) -> Iterator[None]:
    """Report a missing key, or a value that cannot be one of its kind, with its place.

    Raises:
        MembenchError: in place of the error that the wrong content caused.
    """
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise MembenchError(f"{place} does not read as {kind}: {message}") from error


def read_trainings(path: Path) -> dict[str, dict[str, Any]]:
    """Read a paper's trainings by name, with the options that all share; none without the file."""
    if not path.exists():
        return {}
    content = read_options(path)
    return {name: content["common"] | own for name, own in content["trainings"].items()}


def read_reference(path: Path) -> list[Row]:
    """Read the numbers that a paper states, in the order of the file.

    Raises:
        MembenchError: a line lacks a column, or has text in place of a number; names the line.
    """
    rows = []
    with path.open(newline="") as file:
        for line, entry in enumerate(csv.DictReader(file), start=2):
            with reading_as("a number of the paper", f"line {line} of {path.name}"):
                if None in entry or None in entry.values():
                    raise ValueError("it has not as many columns as the first line")
                rows.append(_row(entry, line))
    return rows


def _row(entry: dict[str, str], line: int) -> Row:
    names = ("item", "model", "dataset", "device", "system", "metric", "unit", "note", "claim_id")
    return Row(
        **{name: entry[name] for name in names},
        batch_size=int(entry["batch_size"]) if entry["batch_size"] else None,
        value=float(entry["value"]) if entry["value"] else None,
        half_unit=0.5 * 10.0 ** last_place(Decimal(entry["value"])) if entry["value"] else 0.0,
        oom=entry["oom"] == "true",
        line=line,
    )


def _experiment(path: Path, vocabulary: dict[str, Any], reference: list[Row]) -> Experiment:
    content, sets = read_options(path), vocabulary["sets"]
    with reading_as("an experiment", path.name):
        answers = tuple(_answer(entry, sets) for entry in content.get("answers", ()))
        shown = tuple(pair for entry in content.get("shows", ()) for pair in _shown(entry, vocabulary))
    answered = tuple(
        (row, _for_row(answer, row)) for row in reference for answer in answers if answer.where.matches(row)
    )
    return Experiment(path.stem, content["title"], answered + shown)


def _for_row(answer: Answer, row: Row) -> Answer:
    """Return an answer with columns in its metric, ``"self_number:{note}"``, each up to a semicolon."""
    if answer.value is None:
        return answer
    columns = {name: str(value).split(";")[0] for name, value in vars(row).items()}
    return replace(answer, value=replace(answer.value, metric=answer.value.metric.format(**columns)))


def _answer(entry: dict[str, Any], sets: dict[str, list[Any]]) -> Answer:
    parts = {
        "where": _selection(entry["where"]),
        "value": _quantity(entry["value"], sets) if "value" in entry else None,
        "trained": TrainedQuantity(**entry["trained"]) if "trained" in entry else None,
        "higher_is_better": entry.get("better", "lower") == "higher",
    }
    answer = Answer(**{name: entry[name] for name in entry.keys() - {"better"}} | parts)
    if sum(map(bool, (answer.value, answer.trained, answer.input, answer.not_run))) != 1:
        raise ValueError(f"{entry['where']} needs exactly one of value, trained, input and not_run")
    if answer.papers_largest and (answer.value is None or answer.value.cell.get("batch_size") != LARGEST):
        raise ValueError(f"{entry['where']} has papers_largest, and no value whose cell has batch_size: {LARGEST}")
    if answer.limit not in ("", "lower", "upper"):
        raise ValueError(f"{entry['where']} has limit {answer.limit!r}; write lower or upper")
    return answer


def _quantity(entry: dict[str, Any], sets: dict[str, list[Any]]) -> Quantity:
    forms = [form for form in Form if form in entry]
    takes = [take for take in Take if take in entry]
    unknown = entry.keys() - {"metric", "cell", "times", *forms, *takes}
    if unknown or len(forms) > 1 or len(takes) > 1:
        raise ValueError(f"{entry} is not a quantity: one metric, at most one form and one of mean, min, max")
    over = entry[takes[0]] if takes else {}
    cell, reference = entry.get("cell", {}), entry[forms[0]] if forms else {}
    for changed in (cell, reference, over):
        if unknown := changed.keys() - _CHANGEABLE:
            raise ValueError(f"a cell has no {', '.join(unknown)}; it has {', '.join(_CHANGEABLE)}")
    return Quantity(
        metric=entry["metric"],
        cell=cell,
        times=float(entry.get("times", 1)),
        form=forms[0] if forms else None,
        reference=reference,
        take=takes[0] if takes else None,
        over={name: tuple(_expand(values, sets)) for name, values in over.items()},
    )


def _shown(entry: dict[str, Any], vocabulary: dict[str, Any]) -> Iterator[tuple[Row, Answer]]:
    """Yield a row without a paper's value for each model and system, or each training, of a ``shows`` entry.

    An entry with ``layers`` or ``budgets`` has a row for each of them, named behind the metric.
    """
    sets = vocabulary["sets"]
    layers, budgets = (_expand(entry.get(name, ()), sets) for name in ("layers", "budgets"))
    item, metric, unit = entry["item"], entry["metric"], entry["unit"]
    for name, suffix in product(entry.get("trainings", ()), [f":{budget}" for budget in budgets] or [""]):
        own, of = metric + suffix, vocabulary["trainings"][name]
        row = Row(item, of["model"], of["data"], of["batch_size"], system=name, metric=own, unit=unit)
        yield row, Answer(Selection({}), trained=TrainedQuantity(name, own))
    if "trainings" in entry:
        return
    value = _quantity(entry["value"], sets)
    variants = {f":{layer}": replace(value, metric=f"{value.metric}:{layer}") for layer in layers}
    variants |= {f":{budget}": replace(value, cell={**value.cell, "budget": budget}) for budget in budgets}
    device, batch_size = entry.get("device", vocabulary["device"]), entry.get("batch_size")
    for model, system in product(_expand(entry["models"], sets), _expand(entry["systems"], sets)):
        dataset = vocabulary["models"][model]["dataset"]
        for suffix, quantity in (variants or {"": value}).items():
            row = Row(item, model, dataset, batch_size, device, system, metric + suffix, unit)
            yield row, Answer(Selection({}), value=quantity)


def _check_each_row_once(reference: list[Row], experiments: list[Experiment]) -> None:
    for row in reference:
        by = [experiment.name for experiment in experiments for other, _ in experiment.rows if other is row]
        if len(by) != 1:
            what = " ".join(filter(None, (row.claim_id or row.item, row.model, row.system, row.metric)))
            raise MembenchError(
                f"line {row.line} of reference.csv ({what}) is answered {len(by)} times, not once: {', '.join(by)}"
            )


def _selection(where: dict[str, Any]) -> Selection:
    unknown = where.keys() - Row.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"rows have no column {', '.join(sorted(unknown))}")
    listed = {name: value if isinstance(value, list) else [value] for name, value in where.items()}
    return Selection({name: tuple(map(str, values)) for name, values in listed.items()})


def _expand(values: Any, sets: dict[str, list[Any]]) -> list[Any]:
    return list(sets[values]) if isinstance(values, str) else list(values)
