"""A step runs where the system gives it the predicted peak, and not in a tenth less: plain PyTorch and methods."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.steps.limited import ENVIRONMENT, PLAIN

METHODS = ("pytorch", "memonger", "rotor", "modnn", "gist")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space so")
@pytest.mark.exhaustive  # beside other tests the process has memory to spare, and a tenth less suffices at times
@pytest.mark.parametrize("strategy", [PLAIN, *METHODS])
def test_the_predicted_peak_is_the_least_memory_in_which_a_step_runs(strategy: str) -> None:
    words = [sys.executable, "-m", "tests.helpers.steps.limited", strategy, "1.0", "0.9", "1.0"]
    done = subprocess.run(words, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, False, True]
