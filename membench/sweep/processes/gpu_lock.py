"""Locks of GPUs: one cell at a time on each, over all processes of this machine.

A lock is a locked file; it ends with its process, so a file that is left over blocks no process.
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
"""Placeholder for all GPUs where the driver does not list them."""


@contextmanager
def free_gpu(gpus: Sequence[Gpu], directory: Path = _LOCKS) -> Iterator[dict[str, str]]:
    """Hold the first GPU on which no other cell runs; wait while there is none.

    Args:
        gpus: to choose from; assumed to be of one kind.
        directory: of the locks, on this machine's own disk.

    Yields:
        The environment variables with which a process sees that GPU alone.
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
