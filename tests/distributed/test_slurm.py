"""Processes that train one model together, started by Slurm; `make test-slurm` runs these tests."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.distributed.launch import ENVIRONMENT
from tests.helpers.sweep.slurm import Cluster, required_cluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with required_cluster() as cluster:
        yield cluster


def test_shards_are_trained_by_tasks_of_a_job(cluster: Cluster, tmp_path: Path) -> None:
    """Each task is to torchrun what a node is."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = f"--rdzv-endpoint=127.0.0.1:{free.getsockname()[1]}"
    tasks = ["srun", "--ntasks=2", "--kill-on-bad-exit"]
    processes = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", meeting]
    step = ["-m", "membench", "run", "model=digits_cnn", "backend=cpu", "strategy=joint", "parallel={fsdp: 2}"]
    ended = subprocess.run(
        [*tasks, sys.executable, *processes, *step],
        cwd=tmp_path,
        env=ENVIRONMENT | cluster.environment | {"PYTHONPATH": ENVIRONMENT["PYTHONPATH"]},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    predicted, measured = re.findall(r"(?:peak memory|measured peak) .*\(([\d,]+) bytes\)", ended.stdout)
    assert predicted == measured
    assert re.search(r"processes +2; weights and gradients exchanged", ended.stdout)
