"""Several processes of one program, forked from one that has imported what they need.

What steps import when they are made is imported once for all programs, since that takes seconds. A line of stdin, a
JSON list, is a request: how many processes, a file for what they write, the module, arguments. For each a process is
forked that imports the module and forks one for each rank, which calls the module's ``main`` in the environment that
torchrun would give it. Where one fails, the others are ended. The answer is a line with the exit status.
"""

import json
import os
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import torch

from membench.strategies.base import strategies
from tests.helpers.short_measurements import short_measurements

LATE = ("membench.steps.compile", "membench.steps.wrap", "torch._dynamo")


def serve() -> None:
    """Run each request of stdin, until it ends."""
    for late in LATE:
        import_module(late)
    strategies()
    torch.set_num_threads(1)
    for line in sys.stdin:
        count, written, module, *arguments = json.loads(line)
        if not (launcher := os.fork()):
            with Path(written).open("w") as file:
                os.dup2(file.fileno(), sys.stdout.fileno())  # what a program writes is no answer
                os.dup2(file.fileno(), sys.stderr.fileno())
            launch(count, module, *arguments)
            return
        _, status = os.waitpid(launcher, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def launch(count: int, module: str, *arguments: str) -> None:
    """Fork the ranks, and exit as they do."""
    program = import_module(module)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    forked = set()
    for rank in range(count):
        if process := os.fork():
            forked.add(process)
        else:
            # torch replaces the threads that a fork loses when they are asked for first, which threads of autograd
            # must not do all at once: one that comes too early ends the process (pytorch#178535)
            torch.set_num_threads(1)
            os.environ |= meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            program.main(*arguments)
            return
    has_failed = False
    while forked:
        process, status = os.wait()
        forked.remove(process)
        if status and not has_failed:
            has_failed = True
            for other in forked:
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    sys.exit(has_failed)


if __name__ == "__main__":
    with short_measurements():
        serve()
