"""Two processes on halves of a batch give the gradients of one process on all of it, under every strategy."""

import pytest
import torch
from torch import Tensor

from membench.planning.parallel.exchange import Exchange
from tests.helpers.distributed_training import CRITERION, MICRO_BATCHES, batch, gradients, network, share
from tests.helpers.launch import run_processes
from tests.helpers.variants import COMBINED_STRATEGIES

pytestmark = [pytest.mark.accelerator, pytest.mark.slow]
PROCESSES = 2
REFUSED = {(name, Exchange.AT_END, "in micro-batches") for name in ("ratel", "zero_infinity", "zero_offload")}
"""Sums of gradients are in host memory by the end of these steps."""
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
"""Between sums in another order: a few units in the last place of 24 bits."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], dict[str, Tensor]]:
    """The gradients of two processes under all strategies, in one run, because starting them takes seconds."""
    path = tmp_path_factory.mktemp("processes") / "gradients.pt"
    run_processes("tests.helpers.distributed_training", str(path), processes=PROCESSES)
    return torch.load(path)


def eager(inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    module = network()
    CRITERION(module(inputs), targets).backward()
    return gradients(module)


@pytest.mark.parametrize("how", MICRO_BATCHES)
@pytest.mark.parametrize("exchange", Exchange)
@pytest.mark.parametrize("strategy", COMBINED_STRATEGIES)
def test_two_halves_give_the_gradients_of_the_whole_batch(
    found: dict[tuple[str, str, str], dict[str, Tensor]], strategy: str, exchange: str, how: str
) -> None:
    if (strategy, exchange, how) in REFUSED:
        assert (strategy, exchange, how) not in found
    else:
        torch.testing.assert_close(found[strategy, exchange, how], eager(*batch()), **ROUNDING)


@pytest.mark.parametrize("exchange", Exchange)
@pytest.mark.parametrize("strategy", COMBINED_STRATEGIES)
def test_gradients_are_the_exact_mean_over_both_processes(
    found: dict[tuple[str, str, str], dict[str, Tensor]], strategy: str, exchange: str
) -> None:
    halves = [eager(*(share(tensor, rank, PROCESSES) for tensor in batch())) for rank in range(PROCESSES)]
    mean = {name: (halves[0][name] + halves[1][name]) / PROCESSES for name in halves[0]}
    torch.testing.assert_close(found[strategy, exchange, "whole"], mean, rtol=0, atol=0)
