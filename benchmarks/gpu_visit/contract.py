"""Part a: tests of the contract that had not passed on a GPU on 27 November, each with its result as a row."""

import os
import subprocess
import sys

import pytest

from benchmarks.gpu_visit.pytest_rows import BACKEND_VARIABLE, ROWS_VARIABLE
from benchmarks.gpu_visit.rows import Rows, Visit
from membench.core.configuration import ROOT

TESTS = (
    "tests/contract/test_exchange.py",
    "tests/contract/test_mutations.py",
    "tests/contract/test_cuda.py",
    "tests/contract/test_host_updates.py",
    "tests/contract/test_inference.py",
    "tests/contract/test_micro_batches.py",
    "tests/contract/test_wrapped_modules.py",
    "tests/contract/test_disk_mutations.py",
)
"""Those that did not run again, then the files with tests that failed, and were mended."""
SMALL_TESTS = (TESTS[0], "-k", "test_results_and_peak_stay_exact and AS_MADE and eager")
MARKED = "(accelerator and not exhaustive and not slow) or cuda"
DIVIDED = ("-n", "8", "--dist", "worksteal", "--timeout=60")
TESTS_RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
"""What pytest returns if it came to its end; none are collected if all have passed before."""


def run(visit: Visit, rows: Rows) -> None:
    """Run pytest; a test that fails has a row.

    Raises:
        CalledProcessError: pytest did not run the tests.
    """
    chosen = [*SMALL_TESTS, "-m", "accelerator"] if visit.is_small else [*TESTS, "-m", MARKED, *DIVIDED]
    plugins = ["-p", "benchmarks.gpu_visit.pytest_rows", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, *chosen]
    ended = subprocess.run(command, cwd=ROOT, env=environment(visit, rows), check=False)
    if ended.returncode not in TESTS_RAN:
        ended.check_returncode()


def environment(visit: Visit, rows: Rows) -> dict[str, str]:
    """Return the variables of a run of pytest on the visit's device."""
    # its tests are the inner pytest's own, also where a process of xdist starts it
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    on_device = {} if visit.backend == "cpu" else {"MEMBENCH_TEST_DEVICE": visit.backend}
    return {**outside, **on_device, ROWS_VARIABLE: str(rows.path.resolve()), BACKEND_VARIABLE: visit.backend}
