"""Program of a child process that runs cells; `worker` starts it and describes the protocol."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from membench.core.files import write_whole
from membench.core.libraries.garbage import collect_less_often

CELL = "cell.json"
RECORD = "record.json"
_ANNOUNCEMENTS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which a scheduler announces the end of a job to all its processes. Here they have no effect: a cell that
is cancelled or preempted is not a failed one, and the end of the parent ends this process."""


def main(directory: Path) -> None:
    """Run a cell for each line of stdin until it ends."""
    for announcement in _ANNOUNCEMENTS:
        signal.signal(announcement, lambda *_: None)  # unlike SIG_IGN, which programs started here would inherit
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a model is not an answer
    requests: SimpleQueue[None] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    collect_less_often()
    # importing torch takes seconds, in which the end of stdin is noticed already
    import torch  # noqa: F401 - first, since it loads plugins of devices, which may import modules of membench

    from membench.sweep.cells.run import run_cells

    os.write(answers, b"\n")
    for record in run_cells(_cells(directory / CELL, requests)):
        write_whole(directory / RECORD, record.to_json())
        os.write(answers, b"\n")


def _cells(path: Path, requests: "SimpleQueue[None]") -> Iterator[dict[str, Any]]:
    while True:
        requests.get()
        yield json.loads(path.read_text())


def _listen(requests: "SimpleQueue[None]") -> None:
    """Pass on the requests of the parent; when it has ended, stop with every process that was started here."""
    while os.read(sys.stdin.fileno(), 1):
        requests.put(None)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
