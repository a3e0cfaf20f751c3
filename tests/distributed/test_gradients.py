"""Two processes on halves of a batch give the gradients of one process on all of it, under every strategy."""

from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from membench.planning.parallel.exchange import Exchange
from tests.helpers.distributed.distributed_training import CRITERION, MICRO_BATCHES, batch, gradients, network, share
from tests.helpers.distributed.launch import run_processes
from tests.helpers.steps.variants import COMBINED_STRATEGIES

pytestmark = [pytest.mark.accelerator, pytest.mark.slow]
PROCESSES = 2
KEEP_SUMS_ON_HOST = ("greedysnake", "megatrain", "ratel", "zero_infinity", "zero_offload")
REFUSED = {(name, Exchange.AT_END, "in micro-batches") for name in KEEP_SUMS_ON_HOST}
"""Sums of gradients are in host memory by the end of these steps."""
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
"""Between sums in another order: a few units in the last place of 24 bits."""


def gradients_of_processes(path: Path) -> dict[tuple[str, str, str], dict[str, Tensor]]:
    """Return the gradients of two processes under all strategies, by strategy, exchange and micro-batches."""
    run_processes("tests.helpers.distributed.distributed_training", str(path), processes=PROCESSES)
    found: dict[tuple[str, str, str], dict[str, Tensor]] = torch.load(path)
    return found


def eager(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    module = network()
    CRITERION(module(inputs), targets).backward()
    return gradients(module)


def test_gradients_are_those_of_the_whole_batch_and_the_exact_mean_over_both_processes(
    subtests: pytest.Subtests, tmp_path: Path
) -> None:
    """One test: two processes of pytest that shared the combinations would both start the two that train (26 s)."""
    found = gradients_of_processes(tmp_path / "gradients.pt")
    whole = eager(*batch())
    halves = [eager(*(share(tensor, rank, PROCESSES) for tensor in batch())) for rank in range(PROCESSES)]
    mean = {name: (halves[0][name] + halves[1][name]) / PROCESSES for name in halves[0]}
    for key in product(COMBINED_STRATEGIES, Exchange, MICRO_BATCHES):
        with subtests.test(str(key)):
            if key in REFUSED:
                assert key not in found
                continue
            torch.testing.assert_close(found[key], whole, **ROUNDING)
            if key[-1] == "whole":
                torch.testing.assert_close(found[key], mean, rtol=0, atol=0)
