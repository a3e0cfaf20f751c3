"""Record: one cell of an experiment, whatever became of it."""

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    INFEASIBLE = "infeasible"
    UNSUPPORTED = "unsupported"
    FAILED = "failed"


class Source(StrEnum):
    SIMULATED = "simulated"
    MEASURED = "measured"


@dataclass(frozen=True)
class Record:
    """What was run, where, and what came out.

    Attributes:
        configuration: fully resolved; plain dicts, lists, strings and numbers.
        configuration_hash: of `configuration`, so that equal cells are known as equal.
        source: whether the metrics were simulated or measured.
        outcome: how the cell ended; everything but ``ok`` has a `reason`.
        metrics: numbers by name, the unit in the name (``peak_memory_bytes``, ``step_time_s``).
        layer_metrics: of single layers, as ``"metric:layer"``.
        samples: raw values by metric, of which `metrics` has the median.
        absent: why a metric is missing, by its name.
        provenance: commit, versions, device, seed, time; empty for simulated cells, whose bytes must not
            depend on when or where they ran.
    """

    configuration: dict[str, Any]
    configuration_hash: str
    source: Source
    outcome: Outcome
    reason: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    layer_metrics: dict[str, float] = field(default_factory=dict)
    samples: dict[str, tuple[float, ...]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)


def configuration_hash(configuration: Any) -> str:
    """Return a short hash of a plain configuration, the same on every machine."""
    text = json.dumps(configuration, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
