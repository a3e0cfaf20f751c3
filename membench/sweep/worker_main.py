"""The program of a child process that runs cells; `worker` starts it and has the protocol."""

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

CELL = "cell.json"
RECORD = "record.json"


def main(directory: Path) -> None:
    """Run a cell for each line of stdin until it ends."""
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a model prints is no answer
    asked: SimpleQueue[None] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()

    # torch takes seconds, in which the end of stdin is heard already
    from membench.sweep.run import run_cells

    os.write(answers, b"\n")
    for record in run_cells(_cells(directory / CELL, asked)):
        write_whole(directory / RECORD, record.to_json())
        os.write(answers, b"\n")


def _cells(path: Path, asked: "SimpleQueue[None]") -> Iterator[dict[str, Any]]:
    while True:
        asked.get()
        yield json.loads(path.read_text())


def _listen(asked: "SimpleQueue[None]") -> None:
    """Pass on what the parent asks for; when it is gone, stop with all that was started here."""
    while os.read(sys.stdin.fileno(), 1):
        asked.put(None)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
