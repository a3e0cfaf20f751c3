"""Several processes of one program, for the tests."""

import os
import subprocess
import sys
from pathlib import Path

from membench.core.configuration import ROOT
from tests.helpers.devices import DEVICE

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
FORKED = (sys.executable, "-m", "tests.helpers.forked")


def torchrun(*arguments: str, processes: int = 2, directory: Path = ROOT) -> subprocess.Popen[str]:
    """Start processes that run a module, in a session of their own."""
    return _started([*TORCHRUN, f"--nproc-per-node={processes}", "-m", *arguments], directory)


def run_processes(*arguments: str, processes: int = 2) -> None:
    """Run a module in processes, and assert that none fails.

    On the CPU they are forked from one that has imported the module; a device's runtime does not outlive a fork, so that torchrun
    starts them there.
    """
    running = (
        _started([*FORKED, str(processes), *arguments], ROOT)
        if DEVICE.type == "cpu"
        else torchrun(*arguments, processes=processes)
    )
    _, errors = running.communicate(timeout=1800)
    assert running.returncode == 0, errors


def _started(command: list[str], directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=directory,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
