"""Several processes of one program, for the tests."""

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from membench.core.configuration import ROOT
from tests.helpers.devices import DEVICE

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")


def torchrun(*arguments: str, processes: int = 2, directory: Path = ROOT) -> subprocess.Popen[str]:
    """Start processes that run a module, in a session of their own."""
    return _started([*TORCHRUN, f"--nproc-per-node={processes}", "-m", *arguments], directory)


def run_processes(*arguments: str, processes: int = 2) -> None:
    """Run a module in processes, and assert that none fails.

    On the CPU they are forked from one that has imported what they need; a device's runtime does not outlive a fork, so
    that torchrun starts them there.
    """
    if DEVICE.type == "cpu":
        code, errors = _forked(*arguments, processes=processes)
    else:
        running = torchrun(*arguments, processes=processes)
        _, errors = running.communicate(timeout=1800)
        code = running.returncode
    assert code == 0, errors


def _forked(*arguments: str, processes: int) -> tuple[int, str]:
    """Return the exit status of processes that run a module, and what they wrote."""
    server = _fork_server()
    assert server.stdin and server.stdout and server.stderr
    with NamedTemporaryFile("r") as written:
        server.stdin.write(json.dumps([processes, written.name, *arguments]) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, server.stderr.read()
        return int(answer), written.read()


@cache
def _fork_server() -> subprocess.Popen[str]:
    """Start the process from which the others are forked, which ends with its stdin."""
    server = _started([sys.executable, "-m", "tests.helpers.distributed.forked"], ROOT, subprocess.PIPE)
    atexit.register(server.communicate)
    return server


def _started(command: list[str], directory: Path, stdin: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=directory,
        env=ENVIRONMENT,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
