"""Records on disk, so that a stopped sweep continues where it stopped.

A directory has a file for each configuration, named by its hash and written as soon as the cell is done. A record is
current while the sources that decided it are unchanged; otherwise it is stale, and treated as missing.
"""

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from membench.core.files import write_whole
from membench.core.hardware.device import file_name
from membench.core.record import LARGEST, Configuration, Record, configuration_hash
from membench.profiling.nvml import visible_gpus
from membench.sweep.largest_batch import run_largest
from membench.sweep.results.sources import sources_hash


def directory_of(cell: Configuration, root: Path) -> Path:
    """Return the folder of a cell's record below `root`: one for each backend and GPU."""
    backend: str = cell["backend"]["name"]
    if backend != "cuda":
        return root / backend
    return root / next((file_name(gpu.name) for gpu in visible_gpus()), backend)


class Rerun(StrEnum):
    """Choice of the cells to run: those without a current record, also those that failed, or all."""

    MISSING = "missing"
    FAILED = "failed"
    ALL = "all"


class State(StrEnum):
    """State of a cell's record before a sweep."""

    DONE = "done"
    FAILED = "failed"
    STALE = "stale"
    MISSING = "missing"


_RUN_AGAIN = {
    Rerun.MISSING: {State.MISSING, State.STALE},
    Rerun.FAILED: {State.MISSING, State.STALE, State.FAILED},
    Rerun.ALL: set(State),
}


@dataclass(frozen=True)
class _Entry:
    """Content of a file: a record, the hash of its sources, and the seconds that its cell took."""

    sources_hash: str
    run_time_s: float
    record: Record


class Records:
    """The records in a directory; a missing one is made by running its cell.

    Args:
        directory: need not exist; processes may share it.
        run: runs a cell.
        rerun: which cells with a record run again, once.
    """

    def __init__(self, directory: Path, run: Callable[[Configuration], Record], rerun: Rerun = Rerun.MISSING) -> None:
        self._directory = directory
        self._run = run
        self._rerun = rerun
        self._made: set[str] = set()

    def run(self, cell: Configuration, *, capacity_bytes: int | None = None) -> Record:
        """Return a cell's record, from the disk or from a run.

        Args:
            cell: see `Cell.from_configuration`; a batch size of ``largest`` is searched for.
            capacity_bytes: see `run_largest`.
        """
        key, entry = configuration_hash(cell), self._find(cell)
        if entry and (key in self._made or self._state(cell, entry) not in _RUN_AGAIN[self._rerun]):
            return entry.record
        sources = sources_hash(cell)  # before the run, during which they may be edited
        self._directory.mkdir(parents=True, exist_ok=True)  # fails before the cell takes its time
        start_s = time.perf_counter()
        if cell["batch_size"] == LARGEST:
            record = run_largest(cell, self.run, capacity_bytes=capacity_bytes)
        else:
            record = self._run(cell)
        made = _Entry(sources, round(time.perf_counter() - start_s, 3), record)
        write_whole(self._path(cell), json.dumps(asdict(made), indent=1) + "\n")
        self._made.add(key)
        return record

    def is_due(self, cell: Configuration) -> bool:
        """Return whether `run` would run this cell."""
        return self.state(cell) in _RUN_AGAIN[self._rerun]

    def state(self, cell: Configuration) -> State:
        """Return the state of a cell's record."""
        return self._state(cell, self._find(cell))

    def expected_time_s(self, cells: Iterable[Configuration]) -> list[float | None]:
        """Return each cell's expected time: its last one, else its model's median, else that of all, else None."""
        took_s: defaultdict[str | None, list[float]] = defaultdict(list)
        for path in self._directory.glob("*.json"):
            if entry := _read(path):
                for name in (path.stem, entry.record.configuration["model"]["name"], None):
                    took_s[name].append(entry.run_time_s)

        def expected_s(cell: Configuration) -> float | None:
            names = (configuration_hash(cell), cell["model"]["name"], None)
            return next((statistics.median(took_s[name]) for name in names if name in took_s), None)

        return [expected_s(cell) for cell in cells]

    def _find(self, cell: Configuration) -> _Entry | None:
        """Return the content of a cell's file, unless it is missing, broken or of another cell."""
        entry = _read(self._path(cell))
        if entry is None:
            return None
        found = entry.record.configuration
        if cell["batch_size"] == LARGEST:
            found = found | {"batch_size": LARGEST}
        return entry if configuration_hash(found) == configuration_hash(cell) else None

    def _state(self, cell: Configuration, entry: _Entry | None) -> State:
        if entry is None:
            return State.MISSING
        if entry.sources_hash != sources_hash(cell):
            return State.STALE
        return State.FAILED if entry.record.outcome.is_failure else State.DONE

    def _path(self, cell: Configuration) -> Path:
        return self._directory / f"{configuration_hash(cell)}.json"


def _read(path: Path) -> _Entry | None:
    """Return the content of a file; None if it is missing or broken, so that its cell runs."""
    try:
        values = json.loads(path.read_text())
        record = Record.from_values(values["record"])
        return _Entry(values["sources_hash"], float(values["run_time_s"]), record)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
