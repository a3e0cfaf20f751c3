"""A step that is dropped without `close` ends its threads and closes its files."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import membench

INPUTS, TARGETS = torch.randn(4, 8), torch.randint(4, (4,))


def network() -> nn.Module:
    layers = [nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)]
    return nn.Sequential(*layers)


def _compiled(**options: Any) -> object:
    step = membench.compile(network(), cross_entropy, (INPUTS, TARGETS), **{"strategy": "layrub_hybrid", **options})
    step(INPUTS, TARGETS)
    return step


def _of_two_shapes() -> object:
    step: Any = _compiled(shapes="any")
    step(INPUTS[:2], TARGETS[:2])
    return step


def _wrapped() -> object:
    module = membench.wrap(network(), strategy="layrub_hybrid")
    cross_entropy(module(INPUTS), TARGETS).backward()
    return module


KINDS: dict[str, Callable[[Path], object]] = {
    "compiled": lambda _: _compiled(),
    "in micro-batches": lambda _: _compiled(micro_batch=2),
    "of two shapes": lambda _: _of_two_shapes(),
    "with an update": lambda _: _compiled(strategy="zero_offload", optimizer="adam"),
    "with weights that visit": lambda _: _compiled(strategy="zero_infinity", optimizer="sgd"),
    "with a disk": lambda folder: _compiled(
        strategy="zero_offload", optimizer="adam", disk=folder, host_memory=100_000
    ),
    "wrapped": lambda _: _wrapped(),
}
IN_CYCLES = ("wrapped", "with an update", "with weights that visit", "with a disk")
"""Kinds with references of a cycle of the program's or torch's objects, which Python's collector finds."""


def _threads_and_files() -> tuple[int, int]:
    return threading.active_count(), len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _are_gone(before: tuple[int, int]) -> bool:
    """Return whether there are no more threads and files than before; one of another test may have ended since."""
    return all(now <= then for now, then in zip(_threads_and_files(), before, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_files_are_as_before(kind: str, tmp_path: Path, without_collector: None) -> None:
    KINDS[kind](tmp_path)  # what a first step opens stays open
    gc.collect()
    before = _threads_and_files()
    steps = [KINDS[kind](tmp_path) for _ in range(3)]
    assert _threads_and_files() > before
    del steps
    if kind in IN_CYCLES:
        gc.collect()
    deadline_s = time.monotonic() + 10
    while not _are_gone(before) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert _are_gone(before), _threads_and_files()
