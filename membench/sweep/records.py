"""Records on disk, so that a sweep that was stopped goes on where it stopped.

A directory has a file for each configuration, named by its hash, which is there as soon as the cell is done. It is
current while the sources that decided it are the same; otherwise it is stale, and as good as missing.
"""

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from membench.core.device import file_name
from membench.core.files import write_whole
from membench.core.record import LARGEST, Configuration, Record, configuration_hash
from membench.profiling.nvml import visible_gpus
from membench.sweep.search import run_largest
from membench.sweep.sources import sources_hash


def directory_of(cell: Configuration, root: Path) -> Path:
    """Return where below `root` a cell's record lies: apart by the device that it was measured on."""
    backend: str = cell["backend"]["name"]
    if backend != "cuda":
        return root / backend
    return root / next((file_name(gpu.name) for gpu in visible_gpus()), backend)


class Rerun(StrEnum):
    """Which cells run: those without a current record, those that failed besides, or all."""

    MISSING = "missing"
    FAILED = "failed"
    ALL = "all"


class State(StrEnum):
    """What is known of a cell before it runs."""

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
    """What a file says: a record, of which sources it is, and how many seconds its cell took."""

    sources_hash: str
    run_time_s: float
    record: Record


class Records:
    """The records in a directory, and the way to those that are not there.

    Args:
        directory: need not exist; processes may share it.
        run: how a cell is run.
        rerun: which of the cells that have a record run all the same, once.
    """

    def __init__(
        self, directory: Path, run: Callable[[Configuration], Record], rerun: Rerun = Rerun.MISSING
    ) -> None:
        self._directory = directory
        self._run = run
        self._rerun = rerun
        self._made: set[str] = set()

    def run(self, cell: Configuration, *, capacity_bytes: int | None = None) -> Record:
        """Return a cell's record, from the disk or from a run.

        Args:
            cell: as `run_cells` takes it; or with a batch size of ``largest``, which is searched for.
            capacity_bytes: see `run_largest`.
        """
        key, entry = configuration_hash(cell), _read(self._path(cell))
        if entry and (key in self._made or self._state(cell, entry) not in _RUN_AGAIN[self._rerun]):
            return entry.record
        sources = sources_hash(cell)  # of now: they may be edited while the cell runs
        self._directory.mkdir(parents=True, exist_ok=True)  # before the cell takes its time
        start_s = time.perf_counter()
        if cell["batch_size"] == LARGEST:
            record = run_largest(cell, self.run, capacity_bytes=capacity_bytes)
        else:
            record = self._run(cell)
        self._keep(cell, _Entry(sources, round(time.perf_counter() - start_s, 3), record))
        self._made.add(key)
        return record

    def is_due(self, cell: Configuration) -> bool:
        """Return whether `run` would run this cell."""
        return self.state(cell) in _RUN_AGAIN[self._rerun]

    def state(self, cell: Configuration) -> State:
        return self._state(cell, _read(self._path(cell)))

    def expected_time_s(self, cells: Iterable[Configuration]) -> list[float | None]:
        """Return what each cell is likely to take: as before, or else as its model's cells, or as any; None if none ran."""
        took_s: defaultdict[str | None, list[float]] = defaultdict(list)
        for path in self._directory.glob("*.json"):
            if entry := _read(path):
                for name in (path.stem, entry.record.configuration["model"]["name"], None):
                    took_s[name].append(entry.run_time_s)
        return [
            next(
                (
                    statistics.median(took_s[name])
                    for name in (configuration_hash(cell), cell["model"]["name"], None)
                    if name in took_s
                ),
                None,
            )
            for cell in cells
        ]

    def _state(self, cell: Configuration, entry: _Entry | None) -> State:
        if entry is None:
            return State.MISSING
        if entry.sources_hash != sources_hash(cell):
            return State.STALE
        return State.FAILED if entry.record.outcome.is_failure else State.DONE

    def _keep(self, cell: Configuration, entry: _Entry) -> None:
        write_whole(self._path(cell), json.dumps(asdict(entry), indent=1) + "\n")

    def _path(self, cell: Configuration) -> Path:
        return self._directory / f"{configuration_hash(cell)}.json"


def _read(path: Path) -> _Entry | None:
    """Return what a file says; None where there is none, and where it is broken, for then its cell has to run."""
    try:
        values = json.loads(path.read_text())
        return _Entry(values["sources_hash"], values["run_time_s"], Record.from_values(values["record"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
