"""Data sets of published measurements: a description in YAML, and a table of rows as they were published."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from membench.core.configuration import read_options
from membench.core.errors import MembenchError, unknown
from membench.lab.validation.peers import Peer
from membench.lab.validation.rows import QUANTITIES, Row, read_rows

FITTED = "fitted.yaml"
"""The file that lists rows on which constants were fitted, in the folder of the data sets."""


@dataclass(frozen=True)
class DataSet:
    """A set of published measurements.

    Attributes:
        name: its file's name.
        title: for pages and pictures.
        source: where they were published, and how they were measured.
        rows: all of them.
        fitted: values of rows on which a constant was fitted, all rows that have them are; with a ``quantity``, only
            that one.
        notes: what a reader has to know of the rows; sentences.
        peers: others who published predictions of them, or errors.
        knew: what constants of ours rest on, for the league.
    """

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    fitted: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = field(default=())
    peers: tuple[Peer, ...] = ()
    knew: str = ""

    @property
    def quantities(self) -> tuple[str, ...]:
        """Quantities that were measured, in the order of `QUANTITIES`."""
        return tuple(name for name in QUANTITIES if any(name in row.measured for row in self.rows))

    @property
    def has_ladder(self) -> bool:
        """Whether it is published for some rows which larger batch did not fit."""
        return any(row.next_batch_size is not None for row in self.rows)

    @property
    def has_limit(self) -> bool:
        """Whether it is published for some rows what did not fit."""
        return self.has_ladder or not all(row.fits for row in self.rows)

    def is_fitted(self, row: Row, quantity: str) -> bool:
        """Return whether a constant was fitted on a quantity of a row."""
        return any(
            each.get("quantity", quantity) == quantity
            and row.has({name: value for name, value in each.items() if name != "quantity"})
            for each in self.fitted
        )


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
        raise MembenchError(unknown("data set", name, known))
    path = folder / f"{name}.yaml"
    options = read_options(path)
    try:
        rows = read_rows(options, folder / options["rows"])
        if not rows:
            raise MembenchError(
                f"{folder / options['rows']} has no rows; add the published ones, or choose another data set"
            )
        return DataSet(
            name,
            title=options["title"],
            source=options["source"],
            rows=rows,
            fitted=tuple(read_options(fitted).get(name, ())) if (fitted := folder / FITTED).exists() else (),
            notes=tuple(options.get("notes", ())),
            peers=tuple(Peer(**each) for each in options.get("peers", ())),
            knew=options.get("knew", ""),
        )
    except KeyError as error:
        raise MembenchError(f"{path} or its table has no {error.args[0]!r}; add it") from error
