"""How far predictions were from published measurements, by the committed tables of the validation."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from membench.advice.known_errors import QUANTITIES, Distribution, family
from membench.core.configuration import VALIDATED

_WORDS = {
    "step_time_s": "Step time",
    "allocated_bytes": "Allocated memory",
    "reserved_bytes": "Reserved memory",
    "used_bytes": "Used memory",
}


@dataclass(frozen=True)
class Trust:
    """Errors of predictions of plain PyTorch's steps, over the published rows that are most like the step in question.

    Attributes:
        quantity: one of `membench.advice.known_errors.QUANTITIES`.
        family: name of a family of networks; None: all.
        device: None: all.
        data_sets: the tables in which they were published (docs/validation.md).
        errors: relative, over rows on which no constant was fitted.
        fits_right: fraction of rows of which it was predicted rightly that they fit and the next larger batch does not;
            None: not published.
    """

    quantity: str
    family: str | None
    device: str | None
    data_sets: tuple[str, ...]
    errors: Distribution
    fits_right: float | None

    def sentence(self) -> str:
        """Return the errors in words."""
        networks = "networks of all kinds" if self.family is None else f"networks of the kind {self.family!r}"
        where = "other cards (none is published for this one)" if self.device is None else f"the {self.device}"
        found = self.errors
        text = (
            f"{_WORDS[self.quantity]}: {found.rows} published measurements of plain PyTorch "
            f"({', '.join(self.data_sets)}; {networks} on {where}) differ from the predictions by {found.median:.1%} "
            f"in the median and by {found.p90:.1%} at the 90th percentile"
        )
        if self.fits_right is not None:
            text += f"; which batch is the largest that fits was predicted rightly for {self.fits_right:.0%}"
        return text + "."

    def values(self) -> dict[str, Any]:
        """Return it as values that JSON has."""
        of = {"quantity": self.quantity, "family": self.family, "device": self.device, "data_sets": self.data_sets}
        found = {name: getattr(self.errors, name) for name in ("rows", "median", "p90", "bias")}
        return {**of, **found, "fits_right": self.fits_right}


def trusts(network: str, device: str, folder: Path = VALIDATED) -> tuple[Trust, ...]:
    """Return the errors of each quantity over the rows of that kind of network on that device.

    Where there is none, over all rows of the device; then over those of the kind of network on all devices. A quantity
    without such rows is left out.
    """
    rows = [row for row in _rows(folder) if row["fitted"] == "no" and row["relative_error"]]
    kind = family(network)
    found = []
    for quantity in QUANTITIES:
        for of_kind, on in ((kind, device), (None, device), (kind, None)):
            like = [
                row
                for row in rows
                if row["quantity"] == quantity and of_kind in (None, row["family"]) and on in (None, row["device"])
            ]
            if errors := Distribution.of(float(row["relative_error"]) for row in like):
                data_sets = tuple(sorted({row["data_set"] for row in like}))
                found.append(Trust(quantity, of_kind, on, data_sets, errors, _fits_right(like)))
                break
    return tuple(found)


def _rows(folder: Path) -> Iterator[Mapping[str, str]]:
    for path in sorted(folder.glob("*.csv")):
        with path.open() as file:
            yield from ({**row, "data_set": path.stem} for row in csv.DictReader(file) if "network" in row)


def _fits_right(rows: Sequence[Mapping[str, str]]) -> float | None:
    """Return the fraction of rows predicted rightly to fit while the next larger batch does not."""
    known = [row for row in rows if row.get("simulated_fits")]
    right = [
        row["simulated_fits"] == row.get("measured_fits", "yes") and row.get("simulated_next_fits") != "yes"
        for row in known
    ]
    return sum(right) / len(right) if right else None
