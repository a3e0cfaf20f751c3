"""Measured cells on the CPU, and what a cell's process is given on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from membench.cli.measure import cell_of, parse
from membench.core import configuration
from membench.core.errors import UnsupportedStrategy
from membench.core.record import Outcome, Source
from membench.core.step.workload import Workload
from membench.profiling.nvml import Reading
from membench.sweep.cells import measured
from membench.sweep.cells.baselines import PlainPyTorch, SaveOnCpu
from membench.sweep.cells.measured import CPU_ENVIRONMENT, energy_per_image, environment
from membench.sweep.cells.model import Model
from membench.sweep.cells.run import run_cell
from membench.sweep.processes.worker import Workers
from tests.helpers.devices import DEVICE
from tests.helpers.emulator import PLUGIN

PIECES = 0.1
"""By how much pieces of 512 bytes exceed the small blocks of this network."""


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "WINDOW_S", 0.01)


def cell(system: str, *words: str) -> dict[str, Any]:
    return cell_of(parse(["backend=cpu", *words]), "digits_cnn", 8, system)


@pytest.mark.parametrize("system", ["pytorch", "save_on_cpu", "eager", "layrub_hybrid"])
def test_a_measured_cell_records_memory_throughput_samples_and_provenance(system: str) -> None:
    record = run_cell(cell(system))
    assert (record.outcome, record.source) == (Outcome.OK, Source.MEASURED), record.reason
    assert record.metrics["peak_memory_bytes"] > 0
    assert len(record.samples["images_per_s"]) == measured.WINDOWS
    assert min(record.samples["images_per_s"]) <= record.metrics["images_per_s"]
    assert record.provenance["device"] == "cpu" and "commit" in record.provenance
    assert "energy_j_per_image" not in record.metrics and record.absent["energy_j_per_image"]


@pytest.mark.cuda
@pytest.mark.emulated
@pytest.mark.parametrize("system", ["pytorch", "layrub_hybrid", "gist"])
def test_a_cell_is_measured_on_an_accelerator(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGIN)
    with Workers() as workers:
        record = workers.run(cell(system) | {"backend": {"name": DEVICE.type}})
    assert (record.outcome, record.source) == (Outcome.OK, Source.MEASURED), record.reason
    metrics = record.metrics
    assert 0 < metrics["peak_memory_bytes"] <= metrics["active_bytes"] <= metrics["reserved_bytes"]
    assert metrics["images_per_s"] > 0 and record.provenance["device"]
    if "required_memory_bytes" in metrics:
        assert metrics["peak_memory_bytes"] == pytest.approx(metrics["required_memory_bytes"], rel=PIECES)
        assert metrics["pinned_memory_bytes"] >= (system == "layrub_hybrid")


def test_a_baseline_is_held_to_the_budget_on_the_cpu_too() -> None:
    refused = run_cell(cell("pytorch", "budget=100 KB"))
    assert refused.outcome is Outcome.OUT_OF_MEMORY and "the device has 100.0 KB" in refused.reason
    assert run_cell(cell("pytorch", "budget=100 MB")).outcome is Outcome.OK


def test_predicted_values_are_recorded_next_to_measured_ones() -> None:
    metrics = run_cell(cell("layrub_hybrid")).metrics
    assert metrics["required_memory_bytes"] == metrics["peak_memory_bytes"]
    assert metrics["predicted_step_time_s"] > 0
    assert 0 <= metrics["exposed_transfer_s"] <= metrics["copy_time_s"]


def test_a_baseline_that_is_not_installed_is_unsupported_with_a_remedy() -> None:
    record = run_cell(cell("torchtune_offload"))
    assert record.outcome is Outcome.UNSUPPORTED
    assert "install torchtune" in record.reason


@pytest.mark.parametrize("baseline", [PlainPyTorch(), SaveOnCpu()])
def test_a_baseline_leaves_the_gradients_of_backward(baseline: PlainPyTorch | SaveOnCpu) -> None:
    work = Model.named("digits_cnn").workload(8, seed=0, device="cpu")
    work.module.eval()
    loss = nn.functional.cross_entropy(work.module(*work.inputs), *work.targets)
    expected = torch.autograd.grad(loss, list(work.module.parameters()))
    assert torch.equal(baseline.step(work)(), loss.detach())
    for weight, gradient in zip(work.module.parameters(), expected, strict=True):
        assert weight.grad is not None and torch.equal(weight.grad, gradient)


def test_a_baseline_refuses_inference() -> None:
    with pytest.raises(UnsupportedStrategy, match="this model is there for inference"):
        PlainPyTorch().step(Workload("net", nn.Linear(2, 2), None, (torch.ones(1, 2),)))


def test_energy_is_the_difference_of_two_readings_of_which_neither_may_be_missing() -> None:
    untold = Reading(None, "the driver does not tell")
    assert energy_per_image(Reading(10.0), Reading(70.0), images=3) == Reading(20.0)
    assert energy_per_image(untold, Reading(70.0), images=3) == untold
    assert energy_per_image(Reading(10.0), untold, images=3) == untold


def test_the_process_of_a_gpu_gets_growing_segments_and_for_m_engines_without_workspace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MEMBENCH_CACHE", str(tmp_path))
    memory = {"_target_": "any", "algorithms": "memory"}
    gpu = {"strategy": {"_target_": "any"}, "backend": {"name": "cuda"}}
    assert environment(gpu) == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    rules = json.loads(Path(environment({**gpu, "strategy": memory})["CUDNN_ERRATA_JSON_FILE"]).read_text())["rules"]
    assert {(rule["operation"], rule["engine"]) for rule in rules} >= {("ConvFwd", 2), ("ConvBwdFilter", 99)}
    assert not any(rule["engine"] < 2 for rule in rules)
    assert environment({"strategy": memory, "backend": {"name": "cpu"}}) == CPU_ENVIRONMENT
    small = environment({**gpu, "budget": "5 MB"})
    assert small["CUBLAS_WORKSPACE_CONFIG"] == ":16:8" and "CUDNN_ERRATA_JSON_FILE" in small
    assert environment({**gpu, "budget": "12 GB"}) == environment(gpu)


@pytest.mark.slow
def test_a_process_on_the_cpu_keeps_the_memory_that_it_frees() -> None:
    program = """
import resource, torch
def faults() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(50_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(min(faults() for _ in range(5)))
"""
    found = [
        int(
            subprocess.run(
                [sys.executable, "-c", program], env={**os.environ, **variables}, capture_output=True, check=True
            ).stdout
        )
        for variables in ({"MALLOC_MMAP_MAX_": "1000", "THP_MEM_ALLOC_ENABLE": "1"}, CPU_ENVIRONMENT)
    ]
    assert found[1] < 20 < found[0]


def test_without_a_gpu_a_cuda_cell_fails_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    on_gpu = {**cell("eager"), "backend": configuration.read("backend", "cuda")}
    record = run_cell(on_gpu)
    assert record.outcome is Outcome.FAILED
    assert "needs a GPU, and torch sees none" in record.reason
