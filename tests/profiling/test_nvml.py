"""Counters that the driver reports or lacks, on a stand-in for NVIDIA's library."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from membench.profiling import nvml
from membench.profiling.nvml import read_energy_j, read_processes

GPU = torch.device("cuda", 0)
OTHER_PID = 1


class FakeNvml:
    def __init__(self, processes: list[tuple[int, int | None]]) -> None:
        self.processes = processes
        self.asked_for = ""
        self.opened = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked_for = uuid
        return "handle"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        raise RuntimeError("Not Supported")


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def put(library: FakeNvml | None) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
        properties = SimpleNamespace(uuid="1234-abcd")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    return put


def test_the_process_and_the_others_are_found_on_the_device_of_that_uuid(install) -> None:
    library = FakeNvml([(os.getpid(), 5_000), (OTHER_PID, 700)])
    install(library)
    reading = read_processes(GPU)
    assert (reading.process_bytes.value, reading.others.value) == (5_000, 1)
    assert library.asked_for == "GPU-1234-abcd"
    assert library.opened == 0


@pytest.mark.parametrize(("processes", "others"), [([(os.getpid(), None)], 0), ([(OTHER_PID, 700)], None), ([], 0)])
def test_a_missing_counter_is_none_with_a_reason_and_never_zero(
    install, processes: list[tuple[int, int | None]], others: int | None
) -> None:
    install(FakeNvml(processes))
    reading = read_processes(GPU)
    assert reading.process_bytes.value is None and reading.process_bytes.reason
    assert reading.others.value == others
    assert reading.others.value is not None or reading.others.reason


def test_a_counter_that_is_not_there_and_a_library_that_is_not_there_have_a_reason(install) -> None:
    install(FakeNvml([]))
    assert read_energy_j(GPU).reason == "RuntimeError: Not Supported"
    install(None)
    assert read_energy_j(GPU).reason == "nvidia-ml-py is not installed"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["GPU-a1", "GPU-b2"]), ("1,0", ["GPU-b2", "GPU-a1"]), ("GPU-b", ["GPU-b2"]), ("", [])],
)
def test_visible_gpus_are_those_that_a_process_would_see(
    visible: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [nvml.Gpu("GPU-a1", "a card"), nvml.Gpu("GPU-b2", "a card")]
    monkeypatch.setattr(nvml, "_query", lambda _: (every, ""))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in nvml.visible_gpus()] == expected
