"""Stand-ins for workers, with records made up for the tests."""

import time
from dataclasses import replace

from membench.core.record import Configuration, Outcome, Record, Source, configuration_hash


def record_of(configuration: dict, outcome: Outcome = Outcome.OK, **metrics: float) -> Record:
    reason = "" if outcome is Outcome.OK else "for the test"
    return Record(
        configuration, configuration_hash(configuration), Source.SIMULATED, outcome, reason, {"batch": 1.0, **metrics}
    )


def answer(cell: Configuration) -> Record:
    """Finish in an order unrelated to the order of the cells."""
    time.sleep(0.02 * (len(cell["model"]["name"]) % 3))
    return record_of(cell, metric=float(len(cell["model"]["name"])))


def fail(cell: Configuration) -> Record:
    return replace(record_of(cell, Outcome.FAILED), reason="RuntimeError: no such luck")


def made_up(cell: Configuration) -> Record:
    """Return a record with numbers that depend only on the configuration."""
    found = {**cell, "batch_size": 96 if cell["batch_size"] == "largest" else cell["batch_size"]}
    spread = int(configuration_hash(found), 16) % 1000 / 1000
    memory_bytes = (1 + spread) * 3e7 * found["batch_size"]
    fits = memory_bytes < cell["device"]["memory_bytes"]
    metrics = {
        "peak_memory_bytes": memory_bytes,
        "map_memory_bytes": memory_bytes / 2,
        "weight_bytes": 1e8,
        "overhead_bytes": 1e8,
        "operations": 1e12,
    }
    if fits:
        metrics |= {"step_time_s": 1 + spread, "images_per_s": found["batch_size"] / (1 + spread)}
    return record_of(found, Outcome.OK if fits else Outcome.OUT_OF_MEMORY, **metrics)
