"""Modules divided by torch's `parallelize_module`: plain PyTorch's bits, and each peak as predicted."""

from pathlib import Path
from typing import Any

import pytest
import torch

from membench.models.llama import TokenLoss
from tests.helpers.distributed.launch import run_processes
from tests.helpers.distributed.tensor_parallel import NETWORKS, batch, gradients

ROUNDING = {"rtol": 1e-4, "atol": 1e-6}
"""Between sums in another order."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "networks", "strategies"),
    [
        (2, ["llama"], ["eager", "layrub_hybrid"]),
        pytest.param(2, list(NETWORKS), ["eager", "layrub_hybrid", "joint"], marks=pytest.mark.exhaustive),
        pytest.param(4, list(NETWORKS), ["eager", "layrub_hybrid", "joint"], marks=pytest.mark.exhaustive),
    ],
)
def test_tensor_parallel_steps_are_exact_and_hold_what_is_predicted(
    tmp_path: Path, processes: int, networks: list[str], strategies: list[str]
) -> None:
    arguments = str(tmp_path / "rank"), ",".join(networks), ",".join(strategies)
    run_processes("tests.helpers.distributed.tensor_parallel", *arguments, processes=processes)
    for name in networks:
        whole_loss, whole_gradients = undivided(name)
        for rank in range(processes):
            found = torch.load(tmp_path / f"rank{rank}")[name]
            loss, plain, *_ = found["plain"]
            torch.testing.assert_close(loss, whole_loss, **ROUNDING)
            for weight, (_, _, gradient) in plain.items():
                torch.testing.assert_close(gradient, whole_gradients[weight], **ROUNDING, msg=weight)
            for strategy in strategies:
                own_loss, own, predicted_bytes, peak_bytes = found[strategy]
                torch.testing.assert_close(own_loss, loss, rtol=0, atol=0, msg=strategy)
                assert same(own, plain), (name, strategy, rank)
                assert peak_bytes == predicted_bytes, (name, strategy, rank)


def undivided(name: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss and the gradients of the network in one process."""
    torch.manual_seed(0)
    module = NETWORKS[name][0]()
    inputs, targets = batch()
    loss = TokenLoss()(module(inputs), targets)
    loss.backward()
    return loss.detach(), {weight: found[2] for weight, found in gradients(module).items()}


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Return whether gradients have the same bits and placements."""
    return ours.keys() == theirs.keys() and all(
        torch.equal(ours[name][0], theirs[name][0]) and ours[name][1] == theirs[name][1] for name in theirs
    )
