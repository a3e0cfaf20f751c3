"""Several processes of one program: `python -m tests.helpers.forked COUNT MODULE ARGUMENT ...`.

The module is imported once, with what steps import when they are made, since that takes seconds; then a process is forked for each
rank, which calls the module's ``main`` in the environment that torchrun would give it. Where one fails, the others are ended.
"""

import os
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module

import torch

from membench.strategies.base import strategies

LATE = ("membench.steps.compile", "membench.steps.wrap", "torch._dynamo")


def main(count: str, module: str, *arguments: str) -> None:
    program = import_module(module)
    for late in LATE:
        import_module(late)
    strategies()
    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": count}
    forked = set()
    for rank in range(int(count)):
        if process := os.fork():
            forked.add(process)
        else:
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
    main(*sys.argv[1:])
