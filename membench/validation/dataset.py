"""Data sets of published measurements: a YAML description and a table of rows in the form in which they were published."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from membench.core.checks import number
from membench.core.configuration import read_options
from membench.core.errors import MembenchError, near
from membench.core.record import Configuration

FITTED = "fitted.yaml"
"""The file that lists rows on which constants were fitted, in the folder of the data sets."""

QUANTITIES = ("step_time_s", "reserved_bytes", "used_bytes")
"""What can have been measured, in the unit of its name; the attribute of `membench.steps.predict.Prediction` too."""


@dataclass(frozen=True)
class Row:
    """One published measurement of a step of training.

    Attributes:
        number: of the row in its data set, from 0.
        network: the name in the publication.
        device: name in ``conf/device``.
        measured: by quantity, of `QUANTITIES`.
        next_batch_size: the smallest batch that is known not to have fitted the device; None: unknown.
        step: what is predicted: ``model`` as a file of ``conf/model`` describes it, ``batch_size``, ``precision``,
            ``optimizer`` and ``channels_last``.
    """

    number: int
    network: str
    device: str
    measured: Mapping[str, float]
    next_batch_size: int | None
    step: Configuration

    @property
    def batch_size(self) -> int:
        size: int = self.step["batch_size"]
        return size


@dataclass(frozen=True)
class DataSet:
    """A set of published measurements.

    Attributes:
        name: of its file.
        title: for pages and pictures.
        source: where they were published, and how they were measured.
        rows: all of them.
        fitted: values of rows on which a constant was fitted; all rows that have them are.
        notes: what a reader has to know of the rows; sentences.
    """

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    fitted: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def quantities(self) -> tuple[str, ...]:
        """Quantities that were measured, in the order of `QUANTITIES`."""
        return tuple(name for name in QUANTITIES if any(name in row.measured for row in self.rows))

    @property
    def has_ladder(self) -> bool:
        """Whether it is published for some rows which larger batch did not fit."""
        return any(row.next_batch_size is not None for row in self.rows)

    def is_fitted(self, row: Row) -> bool:
        """Return whether a constant was fitted on a row."""
        values = {"network": row.network, "device": row.device, "batch_size": row.batch_size}
        return any(all(values[name] == value for name, value in each.items()) for each in self.fitted)


def known_datasets(folder: Path) -> list[str]:
    """Return the names of the data sets in a folder: its tables, each with a description."""
    return sorted(path.stem for path in folder.glob("*.csv"))


def load_dataset(folder: Path, name: str) -> DataSet:
    """Return the data set that ``<folder>/<name>.yaml`` describes.

    Raises:
        MembenchError: there is no such file, or it lacks an entry, or its table a column or a number.
    """
    known = known_datasets(folder)
    if name not in known:
        raise MembenchError(
            f"there is no data set {name!r}; choose one of {', '.join(known)}{near(name, known)}"
        )
    path = folder / f"{name}.yaml"
    options = read_options(path)
    try:
        rows = tuple(_rows(options, folder / options["rows"]))
        return DataSet(
            name,
            title=options["title"],
            source=options["source"],
            rows=rows,
            fitted=tuple(read_options(folder / FITTED).get(name, ())),
            notes=tuple(options.get("notes", ())),
        )
    except KeyError as error:
        raise MembenchError(f"{path} or its table has no {error.args[0]!r}; add it") from error


def _rows(options: Mapping[str, Any], table: Path) -> Iterator[Row]:
    columns: Mapping[str, str] = options["columns"]
    ladder: Sequence[int] = options.get("ladder", ())
    with table.open() as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    for index, line in enumerate(lines):
        values = {name: _value(line[column]) for name, column in columns.items()}
        batch_size = values["batch_size"]
        measured = {
            quantity: float(line[entry["column"]]) * float(entry["unit"])
            for quantity, entry in options["measured"].items()
            if line[entry["column"]]
        }
        larger = [size for size in ladder if size > batch_size]
        yield Row(
            number=index,
            network=str(values["network"]),
            device=_device(options["devices"], line),
            measured=measured,
            next_batch_size=min(larger, default=None),
            step={
                "model": {"name": str(values["network"]), **_filled(_model(options, values), values)},
                "batch_size": batch_size,
                "precision": options["precision"],
                "optimizer": _filled(options["optimizer"], values),
                "channels_last": options["channels_last"],
            },
        )


def _model(options: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Return the description of a row's network: the data set's only one, or that of this name."""
    return options["model"] if "model" in options else options["models"][values["network"]]


def _device(devices: Any, line: Mapping[str, str]) -> str:
    return devices if isinstance(devices, str) else devices["names"][line[devices["column"]]]


def _filled(description: Any, values: Mapping[str, Any]) -> Any:
    """Return a description with ``{column}`` replaced by the row's value, which stays a number where it is all of the text."""
    if isinstance(description, dict):
        return {key: _filled(value, values) for key, value in description.items()}
    if isinstance(description, list):
        return [_filled(value, values) for value in description]
    if not isinstance(description, str):
        return description
    whole = description.removeprefix("{").removesuffix("}")
    if description == f"{{{whole}}}":
        return values[whole]
    return description.format(**values)


def _value(text: str) -> int | float | str:
    """Return a cell of a table as the number that it is, or as text."""
    found = number(text)
    if found != found:
        return text
    return int(found) if found.is_integer() and "." not in text else found
