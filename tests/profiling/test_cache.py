"""Costs that outlive the process, on a GPU that is made up."""

from pathlib import Path

import pytest
import torch
from torch import nn

from membench.capture.capture import Captures, capture
from membench.core.errors import MembenchError
from membench.core.graph.call import Output
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.workload import Workload
from membench.models.digits import digits_cnn
from membench.profiling import measured_cost as measured_module
from membench.profiling.cache import load_cache
from membench.profiling.link import Link
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.operators import OperatorCost
from membench.steps.compile import build_step
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.micro_batched_step import MicroBatchedStep
from membench.steps.request import StepRequest
from membench.strategies.base import strategies
from tests.helpers.networks.contract import Layer

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def made_up_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H999 PCIe")


@pytest.fixture(scope="module")
def graph() -> TaskGraph:
    arguments = (torch.zeros(2, 1, 8, 8),), (torch.zeros(2, dtype=torch.int64),)
    return capture(Workload("digits", digits_cnn(), torch.nn.functional.cross_entropy, *arguments)).graph


def test_what_one_process_measured_the_next_one_finds(
    graph: TaskGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = MeasuredCost(CPU, load_cache(GPU, tmp_path))
    annotated = first.annotate(graph)
    assert first.has_measured and first.offload_time_s(1000) > 0
    monkeypatch.setattr(measured_module, "measure_operators", None)  # nothing is measured any more
    monkeypatch.setattr(measured_module, "measure_link", None)
    second = MeasuredCost(CPU, load_cache(GPU, tmp_path))
    assert second.annotate(graph) == annotated
    assert not second.has_measured
    assert [second.task_time_s(t) for t in graph.tasks] == [first.task_time_s(t) for t in graph.tasks]
    assert second.link == first.link
    assert [path.name.rpartition("-")[0] for path in tmp_path.iterdir()] == ["nvidia_h999_pcie"]


def test_what_operators_return_that_their_shape_functions_get_wrong_is_found_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled() -> MicroBatchedStep | CompiledStep:
        cost = MeasuredCost(CPU, load_cache(GPU, tmp_path))
        return build_step(Captures(work), cost, StepRequest(strategies()["eager"]()))

    folded = Layer(lambda m, maps: nn.functional.fold(m.inner(maps), (4, 4), 2), inner=nn.Linear(9, 9))
    work = Workload("folded", folded, torch.sum, (torch.randn(2, 4, 9),))
    first = compiled()
    monkeypatch.setattr(measured_module, "measure_operators", None)
    second = compiled()
    torch.testing.assert_close(second(work.inputs, ()), first(work.inputs, ()), rtol=0, atol=0)
    assert second.predicted_peak_bytes == first.predicted_peak_bytes
    for step in (first, second):
        step.close()


def test_another_setting_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = load_cache(GPU, tmp_path)
    output = Output(torch.float16, (1, 2), (2, 1), 0, 4)
    cost = OperatorCost(512, 1e-5, (output, None))
    cache.add({("relu", (1, 2)): cost})
    cache.link = Link(1e9, 2e9, 0.9e9, 1.9e9, 1e-5, 1e8, 2e8)
    cache.save()
    again = load_cache(GPU, tmp_path)
    assert again.find(("relu", (1, 2))) == cost
    assert again.link == cache.link and again.link.full_duplex
    monkeypatch.setenv("CUDNN_ERRATA_JSON_FILE", "engines.json")
    assert load_cache(GPU, tmp_path).find(("relu", (1, 2))) is None


def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    cache = load_cache(GPU, tmp_path)
    cache.save()
    cache.path.write_text("{}")
    with pytest.raises(MembenchError, match=r"is damaged .*delete it to measure again"):
        load_cache(GPU, tmp_path)
