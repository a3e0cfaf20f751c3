"""Record: the configuration and the result of one cell of an experiment."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from membench.core.units import format_bytes, parse_bytes


class Outcome(StrEnum):
    """How a cell ended."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    INFEASIBLE = "infeasible"
    UNSUPPORTED = "unsupported"
    TIMEOUT = "timeout"
    FAILED = "failed"

    @property
    def is_failure(self) -> bool:
        """Whether the cell failed for reasons unrelated to the method (crash, timeout) and may be retried."""
        return self in (Outcome.TIMEOUT, Outcome.FAILED)

    @property
    def words(self) -> str:
        """The outcome in plain words: ``"out of memory"``."""
        return self.replace("_", " ")


class Source(StrEnum):
    """Whether numbers were simulated or measured; the two never mix."""

    SIMULATED = "simulated"
    MEASURED = "measured"

    @classmethod
    def of(cls, backend: str) -> "Source":
        """Return the source of the numbers that a backend gives."""
        return cls.SIMULATED if backend == "simulated" else cls.MEASURED


AT_PEAK = "_at_peak_bytes"
"""Ends a metric of one holder when the step holds the most, as in ``optimizer_state_at_peak_bytes``."""

LARGEST = "largest"
"""A batch size that stands for the largest one that fits the device."""

Configuration = dict[str, Any]
"""Description of a cell, fully resolved: plain dicts, lists, strings and numbers."""


def is_simulated(configuration: Configuration) -> bool:
    """Return whether a cell's step is simulated rather than run on a device."""
    return Source.of(configuration["backend"]["name"]) is Source.SIMULATED


@dataclass(frozen=True)
class Record:
    """Result of one cell.

    Attributes:
        configuration: the cell's configuration.
        configuration_hash: hash of `configuration`; equal for equal cells.
        source: whether the metrics were simulated or measured.
        outcome: how the cell ended; everything but ``ok`` has a `reason`.
        metrics: numbers by name, the unit in the name (``peak_memory_bytes``, ``step_time_s``).
        layer_metrics: metrics of single layers, as ``"metric:layer"``.
        samples: raw values by metric, whose median is in `metrics`.
        absent: why a metric is missing, by its name.
        provenance: commit, versions, device, seed, time; empty for simulated cells, whose bytes must not
            depend on when or where they ran.
        signal: name of the signal that ended the cell's process, such as ``SIGKILL``.
        stderr_tail: the last lines of a failed cell's standard error.
        note: a sentence on a method that found nothing to do; otherwise empty, and left out of the text.
    """

    configuration: Configuration
    configuration_hash: str
    source: Source
    outcome: Outcome
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    layer_metrics: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    signal: str = ""
    stderr_tail: str = ""
    note: str = ""

    def to_json(self, indent: int | None = 1) -> str:
        """Return the record as text; `from_json` reads it back."""
        values = asdict(self)
        if not self.note:
            del values["note"]
        return json.dumps(values, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Return the record that `to_json` wrote."""
        return cls.from_values(json.loads(text))

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "Record":
        """Return the record with these values, as ``dataclasses.asdict`` returns them.

        Raises:
            ValueError: a value has another type, or the configuration is not the one that was hashed.
        """
        samples = {name: tuple(numbers) for name, numbers in values["samples"].items()}
        source, outcome = Source(values["source"]), Outcome(values["outcome"])
        record = cls(**{**values, "samples": samples, "source": source, "outcome": outcome})
        _check_types(record)
        if configuration_hash(record.configuration) != record.configuration_hash:
            raise ValueError("its configuration is not the one that its hash is of")
        return record

    @classmethod
    def of_failure(cls, configuration: Configuration, outcome: Outcome, reason: str, *, signal: str = "") -> "Record":
        """Return the record of a cell that ended without one."""
        source = Source.of(configuration["backend"]["name"])
        return cls(configuration, configuration_hash(configuration), source, outcome, reason, signal=signal)


def _check_types(record: Record) -> None:
    """Refuse values that are not of their types, as those of a damaged file."""
    texts = [record.configuration_hash, record.reason, record.signal, record.stderr_tail, *record.absent.values()]
    groups = [record.configuration, record.metrics, record.layer_metrics, record.provenance]
    samples = (number for numbers in record.samples.values() for number in numbers)
    numbers = [*record.metrics.values(), *record.layer_metrics.values(), *samples]
    kinds: tuple[tuple[Any, list[Any]], ...] = ((str, texts), (dict, groups), (int | float, numbers))
    for kind, values in kinds:
        for value in values:
            if not isinstance(value, kind):
                raise ValueError(f"{value!r} is not of the type that a record has there")


def framework_name(configuration: Configuration) -> str:
    """Return the name of the framework whose step a cell simulates."""
    framework: str = configuration["framework"]["_target_"]
    return framework.rpartition(".")[2]


def limits_of(configuration: Configuration) -> list[str]:
    """Return a cell's optimizer, budget, micro-batch and compiled kernels, where it has them, each in words."""
    kernels, budget, micro_batch = (configuration.get(name) for name in ("kernels", "budget", "micro_batch"))
    optimizer = configuration.get("optimizer")
    return [
        *([] if optimizer is None else [optimizer["name"]]),
        *([] if budget is None else [f"budget {format_bytes(parse_bytes(budget))}"]),
        *([] if micro_batch is None else [f"micro-batch {micro_batch}"]),
        *([] if kernels is None else [f"{kernels} kernels"]),
    ]


def configuration_hash(configuration: Any) -> str:
    """Return a short hash of a plain configuration, the same on every machine."""
    text = json.dumps(configuration, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
