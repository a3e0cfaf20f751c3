"""Rows of a published table, each with the step that a description makes of it.

A description names the table's columns (``columns``), and may derive further values from them (``values``): ``{by:
"{network}", names: {phi-1.5: 1044}}`` is 1044 in a row whose network is phi-1.5, ``{product: [8, "{layers}"]}`` eight
times its layers. Elsewhere ``{name}`` stands for a row's value.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from membench.core import configuration
from membench.core.checks import number
from membench.core.record import Configuration

LARGEST = "largest_parameters"
"""The weights of the largest network that a device can train."""


QUANTITIES = ("step_time_s", "allocated_bytes", "reserved_bytes", "used_bytes", LARGEST)
"""What can have been measured, in its name's unit; all but `LARGEST` are attributes of `Prediction`."""

_FURTHER = (
    "rates", "strategy", "ranks", "kernels", "keeps_layout", "allocator", "context", "also", "holds_output",
    "benchmark",
)  # fmt: skip
"""Of a step, where its program differs from others."""

PREVIOUS = "previous"
"""Of a description's ``compared_with``: each row is compared with the one before it."""


@dataclass(frozen=True)
class Row:
    """One published measurement of a step of training.

    Attributes:
        number: the row's number in its data set, from 0.
        network: the name in the publication.
        device: name in ``conf/device``.
        measured: by quantity, of `QUANTITIES`.
        next_batch_size: the smallest batch that is known not to have fitted the device; None: unknown.
        step: what is predicted: ``model`` as a file of ``conf/model`` describes it, ``batch_size``, ``precision``,
            ``optimizer``, ``channels_last``, and ``strategy`` where it is not plain PyTorch; ``rates`` of kernels where
            the program's libraries have others; ``kernels`` where its options say so, with ``keeps_layout`` where that
            torch's compiler left images as they were; ``allocator``, ``context``, ``also`` and ``holds_output`` of its
            process and program (`membench.predict`), and ``benchmark``, its ``torch.backends.cudnn.benchmark``;
            ``ranks`` where several GPUs run it: the arguments of `ranks_of`.
        micro_batches: for each update of the weights; the time is that of one of them, with its part of the update.
        sizes: two steps with networks of different depth, from which `LARGEST` follows; none where it was not measured.
        machine: name in ``conf/machine``, and values that replace its own; None: the one of `membench.predict`.
        timed: the step whose time was measured, where it is another one; None: `step`.
        around_s: the published program's seconds around a step, which its time includes.
        fits: whether the program ran; False: the device had not the memory for it.
        reason: why it is not predicted; empty: it is.
        values: the row's and the description's, by name.
        base: the number of the row that it is compared with; None: there is none.
        work: the work of a step, whose rate the publication states; None: its rows state different ones, or seconds.
    """

    number: int
    network: str
    device: str
    measured: Mapping[str, float]
    next_batch_size: int | None
    step: Configuration
    micro_batches: int = 1
    sizes: tuple[Configuration, ...] = ()
    machine: Mapping[str, Any] | None = None
    timed: Configuration | None = None
    around_s: float = 0.0
    fits: bool = True
    reason: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    base: int | None = None
    work: float | None = None

    @property
    def batch_size(self) -> int:
        size: int = self.step["batch_size"]
        return size

    def with_rates(self, rates: Mapping[str, float]) -> "Row":
        """Return the row with these rates of kernels in all of its steps, where its program has none of its own."""

        def changed(step: Configuration) -> Configuration:
            return step | {"rates": {**rates, **step.get("rates", {})}}

        timed, sizes = self.timed and changed(self.timed), tuple(map(changed, self.sizes))
        return replace(self, step=changed(self.step), timed=timed, sizes=sizes)

    def has(self, values: Mapping[str, Any]) -> bool:
        """Return whether the row has all of these values."""
        own = {**self.values, "network": self.network, "device": self.device, "batch_size": self.batch_size}
        return all(own.get(name) == value for name, value in values.items())


def read_rows(options: Mapping[str, Any], table: Path) -> tuple[Row, ...]:
    """Return the rows of a table.

    Args:
        options: the description of its data set.

    Raises:
        KeyError: the description lacks an entry, or the table a column.
    """
    with table.open() as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    rows = [_row(index, line, options) for index, line in enumerate(lines)]
    return tuple(replace(row, base=_base(row, rows, options)) for row in rows)


def _row(index: int, line: Mapping[str, str], options: Mapping[str, Any]) -> Row:
    values: dict[str, Any] = {name: _value(line[column]) for name, column in options["columns"].items()}
    row = Row(
        number=index,
        network=str(values["network"]),
        device=_device(options["devices"], line),
        measured={},
        next_batch_size=None,
        step={"batch_size": values["batch_size"] or 1},
        fits=_fits(line, options.get("out_of_memory")),
        values=values,
    )
    missing = _derive(values, options.get("values", {}))
    row = replace(row, reason=_reason(row, options.get("not_run", ())) or missing)
    row = replace(row, measured=dict(_measured(line, options["measured"], values)))
    if row.reason:
        return row
    larger = [size for size in options.get("ladder", ()) if size > row.batch_size]
    others = {name: _filled(value, values) for name, value in options.get("timed", {}).items()}
    return replace(
        row,
        next_batch_size=min(larger, default=None),
        step=_step(options, values),
        micro_batches=int(_filled(options.get("micro_batches", 1), values)),
        sizes=_sizes(options, values) if LARGEST in row.measured else (),
        machine=_filled(options.get("machine"), values),
        timed=_step(options, {**values, **others}) if others else None,
        around_s=float(_filled(options.get("around_s", 0.0), values)),
        work=_work(options["measured"], values),
    )


def _reason(row: Row, described: Sequence[Mapping[str, Any]]) -> str:
    """Return why a row is not run; empty if it is."""
    for each in described:
        if row.has({name: value for name, value in each.items() if name != "reason"}):
            return str(each["reason"])
    return ""


def _derive(values: dict[str, Any], described: Mapping[str, Any]) -> str:
    """Add further values of a row, and return why one is missing; empty if none is."""
    missing = ""
    for name, entry in described.items():
        try:
            if "product" in entry:
                product = prod((float(_filled(factor, values)) for factor in entry["product"]), start=1.0)
                values[name] = int(product) if product.is_integer() else product
                continue
            key = _value(_text(entry["by"], values))
        except (KeyError, ValueError):
            continue  # it is by one that is missing, or a factor has no number
        if key in entry["names"]:
            values[name] = entry["names"][key]
        else:
            missing = missing or f"the description has no {name!r} for {key!r}"
    return missing


def _sizes(options: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Configuration, ...]:
    return tuple(
        _step(options, {**values, name: number}) for name, numbers in options["sizes"].items() for number in numbers
    )


def _step(options: Mapping[str, Any], values: Mapping[str, Any]) -> Configuration:
    further = {name: _filled(options.get(name, {}), values) for name in _FURTHER}
    return {
        **{name: value for name, value in further.items() if value},
        "model": {"name": str(values["network"]), **_model(options, values)},
        "batch_size": int(values["batch_size"]),
        "precision": _filled(options["precision"], values) or None,
        "optimizer": _filled(options["optimizer"], values),
        "channels_last": options["channels_last"],
    }


def _base(row: Row, rows: Sequence[Row], options: Mapping[str, Any]) -> int | None:
    """Return the number of the row that differs only in the values of ``compared_with``, or that precedes."""
    others = options.get("compared_with")
    if not others:
        return None
    if others == PREVIOUS:
        return row.number - 1 if row.number else None
    wanted = {name: row.values[name] for name in options["columns"]} | others
    return next((each.number for each in rows if each is not row and each.has(wanted)), None)


def _model(options: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """Return the description of a row's network: the data set's, one of ``conf/model``, or ``model_of``'s."""
    if "models" in options:
        return _filled(options["models"][_text(options.get("model_of", "{network}"), values)], values)
    described = _filled(options["model"], values)
    return configuration.read("model", described) if isinstance(described, str) else described


def _measured(
    line: Mapping[str, str], entries: Mapping[str, Any], values: Mapping[str, Any]
) -> Iterator[tuple[str, float]]:
    """Yield each quantity with a number in its cell, which its unit may follow.

    Where the cell is a rate, of so many of a step's as ``per_step``, the step's time is. A quantity can have several
    columns.
    """
    for quantity, described in entries.items():
        for entry in described if isinstance(described, list) else [described]:
            found = re.match(r"[0-9][0-9.e+-]*", line[entry["column"]].replace(",", ""))
            if found and "per_step" in entry:
                with suppress(KeyError):  # of a row that is not run, which may lack values
                    yield quantity, _filled(entry["per_step"], values) / float(found.group())
            elif found:
                yield quantity, float(found.group()) * float(entry["unit"])


def _work(entries: Mapping[str, Any], values: Mapping[str, Any]) -> float | None:
    """Return what a step does of the rate that is published for all rows."""
    described = entries.get("step_time_s")
    if isinstance(described, Mapping) and "per_step" in described:
        return float(_filled(described["per_step"], values))
    return None


def _fits(line: Mapping[str, str], described: Mapping[str, Any] | None) -> bool:
    return described is None or line[described["column"]] not in described["cells"]


def _device(devices: Any, line: Mapping[str, str]) -> str:
    if isinstance(devices, str):
        return devices
    published = line[devices["column"]]
    return str(devices["names"][published]) if "names" in devices else published


def _filled(description: Any, values: Mapping[str, Any]) -> Any:
    """Return a description with ``{column}`` replaced by the row's value, which alone stays a number."""
    if isinstance(description, dict):
        return {key: _filled(value, values) for key, value in description.items()}
    if isinstance(description, list):
        return [_filled(value, values) for value in description]
    return _text(description, values) if isinstance(description, str) else description


def _text(description: str, values: Mapping[str, Any]) -> Any:
    whole = re.fullmatch(r"\{(\w+)\}", description)
    return values[whole[1]] if whole else description.format(**values)


def _value(cell: Any) -> Any:
    """Return a cell of a table as the number that it is, or as text."""
    found = number(cell) if isinstance(cell, str) else cell
    if not isinstance(found, float):
        return found
    if found != found:
        return cell
    return int(found) if found.is_integer() and "." not in str(cell) else found
