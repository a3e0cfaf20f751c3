"""Torch's data parallelism over two processes around a wrapped module: the bits of the module itself."""

from pathlib import Path

import pytest
import torch

from tests.helpers.distributed.distributed_wrapping import STRATEGIES
from tests.helpers.distributed.launch import run_processes

pytestmark = pytest.mark.accelerator


@pytest.mark.slow
def test_gradients_weights_and_buffers_of_two_processes_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "found.pt"
    run_processes("tests.helpers.distributed.distributed_wrapping", str(path), processes=2)
    found = torch.load(path)
    for strategy in STRATEGIES:
        torch.testing.assert_close(found[strategy], found["plain"], rtol=0, atol=0, msg=strategy)
