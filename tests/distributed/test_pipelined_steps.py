"""Stages of a pipeline in real processes: the bits of torch.distributed.pipelining, and the predicted peaks."""

import json
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import nn

import membench
from membench.core.errors import MembenchError
from tests.helpers.distributed.launch import run_processes

NETWORKS = ("mlp", "cnn", "encoder", "decoder", "lstm", "llama")
QUICK = (
    "1F1B/mlp/eager",
    "1F1B/cnn/joint",
    "GPipe/encoder/layrub_hybrid",
    "Interleaved1F1B/llama/eager",
    "InterleavedZeroBubble/decoder/joint",
)
"""Under two processes, in one launch: starting them takes seconds."""

SINGLE = (
    *(f"GPipe/{network}/layrub_hybrid" for network in NETWORKS),
    *("/".join(parts) for parts in product(("1F1B", "GPipe", "InterleavedZeroBubble"), NETWORKS, ("eager", "joint"))),
)
OF_TWO = (*SINGLE, *("/".join(parts) for parts in product(("Interleaved1F1B",), NETWORKS, ("eager", "joint"))))


@cache
def findings(processes: int, cases: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return what each process has found, by case."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "found.json"
        run_processes("tests.helpers.distributed.pipelined_training", str(path), *cases, processes=processes)
        found: dict[str, list[Any]] = json.loads(path.read_text())
        return found


def check(case: str, found: list[Any], processes: int) -> None:
    assert len(found) == processes
    for rank, (differing, predicted_bytes, measured_bytes) in enumerate(found):
        assert not differing, f"process {rank}"
        assert predicted_bytes == measured_bytes, f"process {rank}"


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK)
def test_two_processes_run_the_step_of_torch_with_the_predicted_peak(case: str) -> None:
    check(case, findings(2, QUICK)[case], 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", OF_TWO)
def test_two_processes_run_all_networks_in_all_orders(case: str) -> None:
    check(case, findings(2, OF_TWO)[case], 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", SINGLE)
def test_four_processes_run_all_networks(case: str) -> None:
    check(case, findings(4, SINGLE)[case], 4)


def test_a_pipeline_needs_processes() -> None:
    with pytest.raises(MembenchError, match="no group of processes for a pipeline; start them with torchrun"):
        membench.Pipelined(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), micro_batches=2)
    assert not torch.distributed.is_initialized()
