"""Shards and replicas in real processes: the bits of `fully_shard` and `DistributedDataParallel`, and peaks."""

import json
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.helpers.distributed.launch import run_processes

NETWORKS = ("digits_cnn", "resnet", "vit", "gpt2", "llama", "lstm")
STRATEGIES = ("eager", "layrub_hybrid", "joint")
OF_TWO = ("fully_shard", "kept", "ddp", "small_buckets")
OF_FOUR = (*OF_TWO, "grid")

QUICK = [
    "fully_shard/digits_cnn/eager",
    "fully_shard/resnet/layrub_hybrid",
    "fully_shard/vit/joint",
    "fully_shard/lstm/eager",
    "fully_shard/llama/eager/adamw",
    "kept/llama/joint",
    "small_buckets/gpt2/layrub_hybrid",
    "ddp/digits_cnn/eager/adamw",
    "ddp/digits_cnn/deferred/adamw",
]
REFUSED = "fully_shard/llama/deferred/adamw"
"""Under two processes, in one launch: starting them takes seconds."""


def every_case(wrappers: tuple[str, ...]) -> list[str]:
    """Return all cases; those that update the weights are of some."""
    plain = ["/".join(parts) for parts in product(wrappers, NETWORKS, STRATEGIES)]
    return [*plain, *(f"{wrapper}/{network}/joint/adamw" for wrapper in wrappers for network in NETWORKS[::2])]


@cache
def findings(processes: int, cases: tuple[str, ...]) -> dict[str, list[Any]]:
    """Return what each process has found, by case."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "found.json"
        run_processes("tests.helpers.distributed.sharded_training", str(path), *cases, processes=processes)
        found: dict[str, list[Any]] = json.loads(path.read_text())
        return found


def check(found: list[Any]) -> None:
    for rank, (differing, predicted_bytes, measured_bytes) in enumerate(found):
        assert not differing, f"process {rank}"
        assert measured_bytes == predicted_bytes, f"process {rank}"


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK)
def test_two_processes_run_the_step_of_torch_with_the_predicted_peak(case: str) -> None:
    found = findings(2, (*QUICK, REFUSED))[case]
    assert len(found) == 2
    check(found)


@pytest.mark.slow
def test_deferred_updates_of_shards_are_refused_in_a_sentence() -> None:
    for [sentence], _, _ in findings(2, (*QUICK, REFUSED))[REFUSED]:
        assert "cannot be empty between two steps" in sentence


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", every_case(OF_TWO))
def test_two_processes_run_all_networks_under_all_wrappers(case: str) -> None:
    check(findings(2, tuple(every_case(OF_TWO)))[case])


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", every_case(OF_FOUR))
def test_four_processes_run_all_networks_under_all_wrappers(case: str) -> None:
    found = findings(4, tuple(every_case(OF_FOUR)))[case]
    assert len(found) == 4
    check(found)
