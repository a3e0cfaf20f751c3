"""Table of the measurements on one device: a row per (item, model, batch size, system, metric)."""

from collections.abc import Iterable, Iterator, Sequence

from membench.core.record import Record
from membench.core.tables import format_number

UNITS = {"_per_s": "1/s", "_bytes": "bytes", "_s": "s", "_j_per_image": "J"}
RATIOS_TO = ("eager", "pytorch")
"""Baselines: each system's images per second are divided by theirs of the same model and batch size."""


def device_table(item: str, records: Sequence[tuple[str, Record]]) -> list[dict[str, str]]:
    """Return the table of records by system; every cell is text.

    A failed run, and a metric that the driver does not report, has a row with the reason and without a value.
    """
    return [
        {
            "item": item,
            "model": record.configuration["model"]["name"],
            "batch_size": str(record.configuration["batch_size"]),
            "system": system,
            "metric": metric,
            "unit": unit_of(metric),
            "measured_value": "" if value is None else format_number(value),
            "outcome": str(record.outcome),
            "reason": reason,
            "commit": str(record.provenance.get("commit", "")),
            "time": str(record.provenance.get("time", "")),
        }
        for system, record in records
        for metric, value, reason in (*_metrics(record), *_ratios(record, records))
    ]


def unit_of(metric: str) -> str:
    """Return the unit that a metric's name ends in; empty for counts and ratios."""
    return next((unit for ending, unit in UNITS.items() if metric.endswith(ending)), "")


def _metrics(record: Record) -> Iterator[tuple[str, float | None, str]]:
    if not record.metrics:
        yield "outcome", None, record.reason
    for metric, value in record.metrics.items():
        yield metric, value, ""
    for metric, reason in record.absent.items():
        yield metric, None, reason


def _ratios(record: Record, records: Iterable[tuple[str, Record]]) -> Iterator[tuple[str, float | None, str]]:
    own = record.metrics.get("images_per_s")
    for system, other in records:
        same = all(record.configuration[key] == other.configuration[key] for key in ("model", "batch_size"))
        reached = other.metrics.get("images_per_s")
        if system in RATIOS_TO and same and own and reached:
            yield f"images_per_s_over_{system}", own / reached, ""
