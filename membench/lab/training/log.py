"""Log of training runs: a line of JSON each, committed with the paper's results."""

from collections.abc import Callable
from pathlib import Path

from membench.core.files import append_line
from membench.core.record import Configuration, Outcome, Record, configuration_hash


class RunLog:
    """A file's records, found by configuration; a damaged line, such as one cut off, is left out.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_bytes().splitlines() if path.exists() else []
        self._known = {record.configuration_hash: record for record in filter(None, map(_record, lines))}

    def find(self, configuration: Configuration) -> Record | None:
        """Return a run's record, or None if the file has none."""
        return self._known.get(configuration_hash(configuration))

    def run(
        self, configuration: Configuration, train: Callable[[Configuration], Record], describe: Callable[[Record], str]
    ) -> Record:
        """Return a run's record from the file; without one, or if it failed, run, log and print it."""
        known = self.find(configuration)
        if known is not None and known.outcome is not Outcome.FAILED:
            return known
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.open("a").close()  # refuse an unwritable file before minutes of training
        record = train(configuration)
        append_line(self._path, record.to_json(indent=None))
        self._known[record.configuration_hash] = record
        print(describe(record), flush=True)
        return record


def _record(line: bytes) -> Record | None:
    """Return the record of a line; None if it is damaged, so that its training runs again."""
    try:
        return Record.from_json(line.decode())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
