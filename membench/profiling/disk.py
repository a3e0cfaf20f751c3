"""The rates of a disk, measured through the store that a step uses."""

import time
from dataclasses import dataclass
from pathlib import Path

from membench.backends.disk import DiskStore
from membench.backends.pages import pages
from membench.core.graph.task_graph import Block, Role

_SIZE_BYTES = 64 * 2**20
_REPEATS = 2


@dataclass(frozen=True)
class DiskRates:
    """Bytes per second of large requests."""

    read_bytes_per_s: float
    write_bytes_per_s: float


def measure_disk(folder: Path) -> DiskRates:
    """Return the better of two rates at which blocks of 64 MiB are written into a folder and read again.

    Raises:
        DiskFailed: there is no room, or the disk is broken.
    """
    store = DiskStore(folder, [Block(0, "measured block", _SIZE_BYTES, Role.OPTIMIZER_STATE, 0)])
    memory = pages(_SIZE_BYTES).fill_(1)
    read_s, write_s = [], []
    for _ in range(_REPEATS):
        start_s = time.perf_counter()
        store.write(0, memory)
        written_s = time.perf_counter()
        store.read(0, memory)
        write_s.append(written_s - start_s)
        read_s.append(time.perf_counter() - written_s)
    store.close()
    return DiskRates(_SIZE_BYTES / min(read_s), _SIZE_BYTES / min(write_s))
