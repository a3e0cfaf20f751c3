"""Locks of GPUs: one cell at a time on each, over all processes and users of this machine.

A lock is a locked file; it ends with its process, so a file that is left over blocks no process.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
        directory: directory of the locks, on this machine's own disk.

    Yields:
        The environment variables with which a process sees that GPU alone.
    """
    while True:
        for gpu in gpus or [_UNKNOWN]:
            path = directory / f"membench-{gpu.uuid or 'gpu'}.lock"
            file = _opened(path)
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


def _opened(path: Path) -> int:
    """Return a file that any user can lock, opened to read, as in a shared folder only its owner may write.

    Neither a link nor a pipe that somebody has put there is followed or waited for.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        with suppress(FileNotFoundError):
            return os.open(path, flags)
        with suppress(FileExistsError):  # of another process, since a moment ago
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o444)
            os.fchmod(file, 0o444)  # whatever the umask
            return file
