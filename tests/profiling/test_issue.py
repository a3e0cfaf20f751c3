"""Host time spent on the instructions of a step, on fake streams."""

import pytest
import torch

from membench.backends.accelerator import AcceleratorBackend
from membench.profiling.issue import measure_issue
from tests.helpers.emulator.fake_accelerator import fake_accelerator


def test_a_chain_is_issued_with_and_without_copies_and_leaves_no_memory_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.profiling.issue.real_backend", AcceleratorBackend)
    with fake_accelerator(monkeypatch) as cuda:
        times = measure_issue(torch.device("cpu"))
    assert 0 <= times.task_s < 1e-2
    assert 0 < times.copy_s < 1e-2
    copies = [what for _, what, _ in cuda.calls].count("copy")
    assert copies and copies % 2 == 0
    assert not cuda.locked_bytes


def test_a_copy_of_the_cpu_is_handed_to_another_thread() -> None:
    times = measure_issue(torch.device("cpu"))
    assert 0 <= times.task_s < 1e-2
    assert 0 < times.copy_s < 1e-1
