"""One cell at a time on a GPU, whichever processes of this machine run cells: a locked file for each GPU.

The lock ends with its process, however that ends, so a file that lies about blocks nobody.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

from membench.profiling.nvml import Gpu

_POLL_S = 0.2
_LOCKS = Path(gettempdir())
_UNKNOWN = Gpu(uuid="", name="")
"""Stands for all GPUs where the driver does not list them."""


@contextmanager
def free_gpu(gpus: Sequence[Gpu], directory: Path = _LOCKS) -> Iterator[dict[str, str]]:
    """Hold the first GPU on which no other cell runs; wait while there is none.

    Args:
        gpus: to choose from; taken to be of one kind.
        directory: of the locks, on this machine's own disk.

    Yields:
        What a process needs in its environment to see that GPU alone.
    """
    while True:
        for gpu in gpus or [_UNKNOWN]:
            path = directory / f"membench-{gpu.uuid or 'gpu'}.lock"
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield {"CUDA_VISIBLE_DEVICES": gpu.uuid} if gpu.uuid else {}
                return
            finally:
                os.close(file)
        time.sleep(_POLL_S)
