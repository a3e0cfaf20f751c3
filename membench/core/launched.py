"""What torchrun tells a process that it starts; read without torch, which takes seconds."""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Processes:
    """How many processes there are, and which of them this is."""

    rank: int
    count: int


def launched() -> Processes:
    """Return the processes that torchrun has started; this one where it has not."""
    return Processes(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
