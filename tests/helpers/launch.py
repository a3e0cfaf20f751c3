"""torchrun for the tests."""

import os
import subprocess
import sys
from pathlib import Path

from membench.core.configuration import ROOT

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def torchrun(*arguments: str, processes: int = 2, directory: Path = ROOT) -> subprocess.Popen[str]:
    """Start processes that run a module, in a session of their own."""
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={processes}",
    ]
    return subprocess.Popen(
        [*launcher, "-m", *arguments],
        cwd=directory,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
