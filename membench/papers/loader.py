"""Reader of `experiments/<paper>/`: the paper's vocabulary, its reference numbers and its experiments.

The format, by example (`experiments/layrub/table5.yaml` is a real one):

    title: Time of 20 iterations
    answers:
      - where: {metric: time_overhead_vs_own_baseline, system: Layrub-hybrid}   # rows of reference.csv
        value: {metric: step_time_s, increase_percent: {system: Caffe}}         # of the row's own cell
      - where: {system: "MXNet*"}
        not_run: MXNet is not built yet
      - {where: {item: Table 3}, value: {metric: "self_number:{note}"}}                   # {column}: the row's own, up to a semicolon
    shows:
      - {item: Figure 14, metric: normalised_time, unit: x, models: table 5, systems: [Layrub-hybrid], value: {...}}

``trainings.yaml`` describes what is trained to accuracy; ``trained: {training: NAME, metric: epochs_to_accuracy}`` in place of
``value`` answers a row with it.
"""

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from membench.core.configuration import read_options
from membench.core.errors import MembenchError
from membench.core.units import PRINTED_UNITS
from membench.papers.experiment import (
    Answer,
    Experiment,
    Form,
    Paper,
    PaperCell,
    Quantity,
    Remark,
    Row,
    Selection,
    Take,
    TrainedQuantity,
)

_CHANGEABLE = ("metric", *PaperCell.__dataclass_fields__)
"""Fields in which a quantity's cell may differ from its row's."""
_NO_EXPERIMENTS = {"paper", "remarks", "trainings"}
_REMARKS = ("inconsistencies", "causes", "calibration")


def known_papers(experiments: Path) -> list[str]:
    """Return the papers that have a folder in ``experiments``.

    Raises:
        MembenchError: there is no such folder, as for an installed package outside a clone of the repository.
    """
    if not experiments.is_dir():
        raise MembenchError(
            f"there is no folder {experiments}; run this in a clone of the repository, which has the papers' experiments"
        )
    return sorted(path.parent.name for path in experiments.glob("*/paper.yaml"))


def load_paper(directory: Path) -> Paper:
    """Read ``experiments/<paper>``.

    Raises:
        MembenchError: a row is answered by no experiment or by two, or a file does not read as what it should be.
    """
    try:
        return _paper(directory)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MembenchError(
            f"{directory} does not read as a paper's experiments: {_message(error)}"
        ) from error


def _message(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def _paper(directory: Path) -> Paper:
    trainings = read_trainings(directory / "trainings.yaml")
    vocabulary = read_options(directory / "paper.yaml") | {"trainings": trainings}
    remarks = read_options(path) if (path := directory / "remarks.yaml").exists() else {}
    if unknown := remarks.keys() - {*_REMARKS}:
        raise ValueError(f"remarks.yaml has {', '.join(unknown)}; it may have {', '.join(_REMARKS)}")
    reference = read_reference(directory / "reference.csv")
    files = [path for path in sorted(directory.glob("*.yaml")) if path.stem not in _NO_EXPERIMENTS]
    experiments = [_experiment(path, vocabulary, reference) for path in files]
    _check_each_row_once(reference, experiments)
    return Paper(
        name=directory.name,
        title=vocabulary["title"],
        device=vocabulary["device"],
        models=vocabulary["models"],
        systems=vocabulary["systems"],
        devices=vocabulary["devices"],
        clusters=vocabulary.get("clusters", {}),
        training_images=vocabulary.get("training_images", {}),
        units=PRINTED_UNITS | vocabulary.get("units", {}),
        step_metrics=vocabulary.get("step_metrics", ""),
        record_metrics=vocabulary.get("record_metrics", {}),
        trainings=trainings,
        experiments=tuple(experiments),
        **{kind: tuple(_remark(entry) for entry in remarks[kind] or ()) for kind in remarks},
    )


def read_trainings(path: Path) -> dict[str, dict[str, Any]]:
    """Read a paper's trainings by name, each with the options that all have in common; without the file there are none."""
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
            try:
                if None in entry or None in entry.values():
                    raise ValueError("it has not as many columns as the first line")
                rows.append(_row(entry, line))
            except (KeyError, TypeError, ValueError) as error:
                message = f"line {line} of {path.name} does not read as a number of the paper: {error}"
                raise MembenchError(message) from error
    return rows


def _row(entry: dict[str, str], line: int) -> Row:
    names = ("item", "model", "dataset", "device", "system", "metric", "unit", "note", "claim_id")
    return Row(
        **{name: entry[name] for name in names},
        batch_size=int(entry["batch_size"]) if entry["batch_size"] else None,
        value=float(entry["value"]) if entry["value"] else None,
        oom=entry["oom"] == "true",
        line=line,
    )


def _experiment(path: Path, vocabulary: dict[str, Any], reference: list[Row]) -> Experiment:
    content = read_options(path)
    sets = vocabulary["sets"]
    try:
        answers = tuple(_answer(entry, sets) for entry in content.get("answers", ()))
        shown = tuple(pair for entry in content.get("shows", ()) for pair in _shown(entry, vocabulary))
    except (KeyError, TypeError, ValueError) as error:
        raise MembenchError(f"{path.name} does not read as an experiment: {_message(error)}") from error
    answered = tuple(
        (row, _for_row(answer, row)) for row in reference for answer in answers if answer.where.matches(row)
    )
    return Experiment(path.stem, content["title"], answered + shown)


def _for_row(answer: Answer, row: Row) -> Answer:
    """Return an answer with the row's columns in its metric, each up to its first semicolon: ``"self_number:{note}"``."""
    if answer.value is None:
        return answer
    columns = {name: str(value).split(";")[0] for name, value in vars(row).items()}
    return replace(answer, value=replace(answer.value, metric=answer.value.metric.format(**columns)))


def _answer(entry: dict[str, Any], sets: dict[str, list[Any]]) -> Answer:
    answer = Answer(
        where=_selection(entry["where"]),
        value=_quantity(entry["value"], sets) if "value" in entry else None,
        trained=TrainedQuantity(**entry["trained"]) if "trained" in entry else None,
        direction_only=entry.get("direction_only", ""),
        unchanged=entry.get("unchanged", False),
        input=entry.get("input", ""),
        not_run=entry.get("not_run", ""),
        limit=entry.get("limit", ""),
        higher_is_better=entry.get("better", "lower") == "higher",
        baseline=entry.get("baseline", {}),
    )
    if sum(map(bool, (answer.value, answer.trained, answer.input, answer.not_run))) != 1:
        raise ValueError(f"{entry['where']} needs exactly one of value, trained, input and not_run")
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


def _shown(entry: dict[str, Any], vocabulary: dict[str, Any]) -> list[tuple[Row, Answer]]:
    """Return a row without a paper's value for each model and system of a ``shows`` entry.

    An entry with ``layers`` or ``budgets`` has a row for each of them, named behind the metric; one with ``trainings`` has
    rows for these instead.
    """
    sets = vocabulary["sets"]
    if "trainings" in entry:
        suffixes = [f":{budget}" for budget in _expand(entry.get("budgets", []), sets)] or [""]
        return [
            _shown_training(entry, name, vocabulary["trainings"][name], suffix)
            for name in entry["trainings"]
            for suffix in suffixes
        ]
    variants = list(_variants(_quantity(entry["value"], sets), entry, sets))
    return [
        (
            Row(
                item=entry["item"],
                model=model,
                dataset=vocabulary["models"][model]["dataset"],
                batch_size=entry.get("batch_size"),
                device=entry.get("device", vocabulary["device"]),
                system=system,
                metric=entry["metric"] + suffix,
                unit=entry["unit"],
            ),
            Answer(Selection({}), value=quantity),
        )
        for model in _expand(entry["models"], sets)
        for system in _expand(entry["systems"], sets)
        for suffix, quantity in variants
    ]


def _variants(
    quantity: Quantity, entry: dict[str, Any], sets: dict[str, list[Any]]
) -> Iterator[tuple[str, Quantity]]:
    """Yield a quantity for each layer or budget, or as it is, each with the addition to the row's metric."""
    for layer in _expand(entry.get("layers", []), sets):
        yield f":{layer}", replace(quantity, metric=f"{quantity.metric}:{layer}")
    for budget in _expand(entry.get("budgets", []), sets):
        yield f":{budget}", replace(quantity, cell={**quantity.cell, "budget": budget})
    if "layers" not in entry and "budgets" not in entry:
        yield "", quantity


def _shown_training(
    entry: dict[str, Any], name: str, options: dict[str, Any], suffix: str
) -> tuple[Row, Answer]:
    """Return a row without a paper's value for one training, which has no device of the paper."""
    metric = entry["metric"] + suffix
    row = Row(
        item=entry["item"],
        model=options["model"],
        dataset=options["data"],
        batch_size=options["batch_size"],
        system=name,
        metric=metric,
        unit=entry["unit"],
    )
    return row, Answer(Selection({}), trained=TrainedQuantity(name, metric))


def _check_each_row_once(reference: list[Row], experiments: list[Experiment]) -> None:
    for row in reference:
        by = [experiment.name for experiment in experiments for other, _ in experiment.rows if other is row]
        if len(by) != 1:
            what = " ".join(filter(None, (row.claim_id or row.item, row.model, row.system, row.metric)))
            raise MembenchError(
                f"line {row.line} of reference.csv ({what}) is answered {len(by)} times, not once: {', '.join(by)}"
            )


def _remark(entry: dict[str, Any]) -> Remark:
    return Remark(_selection(entry["where"]), entry["text"])


def _selection(where: dict[str, Any]) -> Selection:
    unknown = where.keys() - Row.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"rows have no column {', '.join(sorted(unknown))}")
    listed = {name: value if isinstance(value, list) else [value] for name, value in where.items()}
    return Selection({name: tuple(map(str, values)) for name, values in listed.items()})


def _expand(values: Any, sets: dict[str, list[Any]]) -> list[Any]:
    return list(sets[values]) if isinstance(values, str) else list(values)
