"""Tables of results: a row per (item, model, batch size, device, system, metric), with the paper's value and ours.

Cells are text with a fixed count of digits, so that equal results are equal bytes.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from membench.core.record import Outcome
from membench.core.tables import format_number, read_csv
from membench.lab.papers.judging.verdicts import deviation
from membench.lab.papers.reading.experiment import Row
from membench.lab.papers.reading.quantities import Result
from membench.lab.papers.reading.row_key import RowKey

if TYPE_CHECKING:
    import pandas as pd

VALUE_COLUMNS = ("paper_value", "simulated_value", "measured_value", "deviation")

_MEASURED_COLUMNS = ("item", "model", "batch_size", "system", "metric", "measured_value")


class MeasuredValues:
    """Values measured on real devices, from ``results/measured/<device>/*.csv``; the first device of a row counts.

    Raises:
        MembenchError: a file is not such a table.
    """

    def __init__(self, directory: Path) -> None:
        self._values: dict[RowKey, tuple[float, str]] = {}
        for path in sorted(directory.glob("*/*.csv")):
            for entry in read_csv(path, columns=_MEASURED_COLUMNS, numbers=("measured_value",)):
                if entry["measured_value"]:
                    value = float(entry["measured_value"]), path.parent.name
                    self._values.setdefault(RowKey.read(entry).on_any_device(), value)

    def find(self, row: Row) -> tuple[float | None, str]:
        """Return the value measured for a row on any device, and that device; None and "" without one."""
        return self._values.get(RowKey.of(row).on_any_device(), (None, ""))


def table(results: Iterable[Result], measured: MeasuredValues) -> "pd.DataFrame":
    """Return the table of one experiment's results; every cell is text."""
    import pandas as pd  # takes half a second, which parsing need not wait for

    lines = []
    for result in results:
        reasons = result.reason, result.answer.direction_only
        lines.append(table_line(result, measured, {"outcome": _outcome(result)}, *reasons))
    return pd.DataFrame(lines)


def table_line(
    result: Result, measured: MeasuredValues | None, judged: Mapping[str, str], *reasons: str
) -> dict[str, str]:
    """Return a result's line of a table, as text by column.

    Args:
        measured: values of real devices; without them, the line is the same on every machine.
        judged: the column between values and reasons.
    """
    value, device = measured.find(result.row) if measured else (None, "")
    return {
        **RowKey.of(result.row)._asdict(),
        "our_batch_size": "" if result.our_batch_size is None else str(result.our_batch_size),
        **_value_columns(result, value),
        **judged,
        "reason": "; ".join(filter(None, (*reasons, f"measured on {device}" if device else ""))),
    }


def _value_columns(result: Result, measured_value: float | None) -> dict[str, str]:
    """Return the paper's value, ours, and ours' deviation as a fraction of the paper's.

    A trained value is a measured one. A row that is judged by its direction only has no deviation.
    """
    papers, ours = result.row.value, result.value
    comparable = not result.answer.direction_only
    off = deviation(ours, papers) if comparable and ours is not None and papers is not None else None
    numbers = (papers, None, ours) if result.answer.trained else (papers, ours, measured_value)
    return {
        **{name: format_number(number) for name, number in zip(VALUE_COLUMNS[:3], numbers, strict=True)},
        "deviation": "" if off is None else f"{off:.3f}",
    }


def _outcome(result: Result) -> str:
    if result.answer.input:
        return "input"
    if result.answer.not_run:
        return "not_run"
    return str(result.outcome or Outcome.FAILED)
