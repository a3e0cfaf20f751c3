"""Search for the largest batch that fits a device, by running cells."""

from collections.abc import Callable

from membench.core.record import Configuration, Outcome, Record
from membench.sweep.limits import by_line, largest

BATCH_SIZE_STEP = 16
"""Resolution of the search; most batch sizes in Layrub's Table 7 are multiples of 16."""


def run_largest(
    configuration: Configuration, run: Callable[[Configuration], Record], *, capacity_bytes: int | None = None
) -> Record:
    """Search for the largest batch that fits the device, and return the record of the cell with that batch.

    Args:
        capacity_bytes: the device's memory; the search then starts at the batch predicted from two small ones.
    """
    tried: dict[int, Record] = {}

    def probe(batch_size: int) -> Record:
        if batch_size not in tried:
            tried[batch_size] = decided(run({**configuration, "batch_size": batch_size}))
        return tried[batch_size]

    try:
        guess = None if capacity_bytes is None else _predict(probe, capacity_bytes)
        found = largest(lambda n: probe(n).outcome is Outcome.OK, step=BATCH_SIZE_STEP, guess=guess)
    except SearchError as error:
        return error.record
    return tried[found or BATCH_SIZE_STEP]


def decided(record: Record) -> Record:
    """Return a record, if it decides whether its cell fits.

    Raises:
        SearchError: the cell failed for another reason, such as its time limit.
    """
    if record.outcome.is_failure or record.outcome is Outcome.UNSUPPORTED:
        raise SearchError(record)
    return record


def _predict(probe: Callable[[int], Record], capacity_bytes: int) -> int | None:
    sizes = (BATCH_SIZE_STEP, 2 * BATCH_SIZE_STEP)
    found = [probe(size).metrics for size in sizes]
    first, second = (each.get("used_bytes", each.get("required_memory_bytes")) for each in found)
    if first is None or second is None:
        return None
    return by_line((sizes[0], first), (sizes[1], second), capacity_bytes)


class SearchError(Exception):
    """Failure of a cell of a search for another reason than its size."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.reason)
        self.record = record
