"""The rank and count of processes that torchrun started; read without importing torch, which takes seconds."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Processes:
    """The number of processes, and the rank of this one."""

    rank: int
    count: int


def launched() -> Processes:
    """Return the processes that torchrun started; one process without torchrun."""
    return Processes(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
