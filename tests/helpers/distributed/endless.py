"""A program with training that never ends, for tests that end one of its processes.

`... -m tests.helpers.distributed.endless DIRECTORY HOW`.

Processes exchange gradients (``exchange``), or the module is wrapped by ``fully_shard``. Each process writes its number
and the steps that it has done into a file named by its process id.
"""

import os
import sys
from pathlib import Path

import torch
from torch.distributed.fsdp import fully_shard

import membench
from membench.core.errors import MembenchError
from membench.core.libraries.distributed import join, joined
from tests.helpers.distributed.distributed_training import CRITERION, batch, network, share

TIMEOUT_S = 40
"""More than the two may be apart when they start on a busy machine."""


def train(directory: Path, how: str) -> None:
    with join("cpu", TIMEOUT_S):
        rank, count = joined().rank, joined().count
        mine = tuple(share(tensor, rank, count) for tensor in batch())
        if how == "fully_shard":
            module = fully_shard(network())
            step = membench.compile(module, CRITERION, mine, strategy="layrub_hybrid")
        else:
            step = membench.compile(network(), CRITERION, mine, strategy="layrub_hybrid", exchange="as_made")
        done = 0
        while True:
            step(*mine)
            done += 1
            progress = directory / f"{os.getpid()}.new"
            progress.write_text(f"{rank} {done}")
            progress.rename(directory / str(os.getpid()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        train(Path(sys.argv[1]), sys.argv[2])
    except MembenchError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
