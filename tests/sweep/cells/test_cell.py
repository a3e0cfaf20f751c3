"""Cells: built once from a configuration, with defaults for what it leaves out, and refused with the option's name."""

from dataclasses import FrozenInstanceError, replace

import pytest

from experiments.vdnn.metrics import step_metrics
from membench.capture.gpu.virtual_gpu import AnyGpu
from membench.core.configuration import load, read
from membench.core.errors import MembenchError
from membench.core.hardware.cluster import SINGLE_DEVICE
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.machine import HostLimit
from membench.core.units import MIB
from membench.frameworks.base import Framework
from membench.planning.parallel.exchange import Exchange
from membench.strategies.eager import Eager
from membench.sweep.cells.baselines import PlainPyTorch
from membench.sweep.cells.cell import Cell
from membench.sweep.cells.graphs import Graphs
from tests.helpers.sweep.cells import small_cell


def test_attributes_are_the_objects_that_the_configuration_describes() -> None:
    configuration = small_cell(budget="200 MB", micro_batch=2, exchange="at_end")
    cell = Cell.from_configuration(configuration)
    assert isinstance(cell.simulated_device, DeviceProfile) and isinstance(cell.framework, Framework)
    assert isinstance(cell.method.strategy(), Eager) and cell.method.baseline is None
    assert (cell.model.name, cell.model.inputs, cell.batch_size) == ("lenet", [{"shape": [1, 28, 28]}], 4)
    assert (cell.budget_bytes, cell.micro_batch, cell.exchange) == (200 * MIB, 2, Exchange.AT_END)
    assert cell.is_simulated and cell.captured_on() is None
    assert cell.workload(4).inputs[0].device.type == "meta"
    assert cell.configuration is configuration
    with pytest.raises(FrozenInstanceError):
        cell.seed = 1  # type: ignore[misc]


def test_what_a_measured_cell_leaves_out_has_defaults() -> None:
    configuration = small_cell(device=None, cluster=None, backend={"name": "cpu"})
    for option in ("budget", "micro_batch", "exchange", "metrics"):
        del configuration[option]
    cell = Cell.from_configuration(configuration)
    assert (cell.cluster, cell.budget_bytes, cell.exchange) == (SINGLE_DEVICE, None, Exchange.AS_MADE)
    assert not cell.is_simulated and cell.workload(4).inputs[0].device.type == "cpu"
    with pytest.raises(MembenchError, match="a simulated cell needs a device"):
        _ = cell.simulated_device


def test_the_simulated_device_is_in_the_chosen_machine_with_the_memory_that_it_may_use() -> None:
    assert Cell.from_configuration(small_cell()).simulated_machine == load("machine", "server")
    chosen = small_cell(machine=read("machine", "desktop"), host_memory="2 MB")
    cell = Cell.from_configuration(chosen)
    assert cell.machine == load("machine", "desktop")
    assert cell.simulated_machine == replace(load("machine", "desktop"), memory_bytes=2 * MIB)
    assert cell.cost.host_limit == HostLimit(2 * MIB, cell.simulated_machine.disk_bytes)


def test_a_baseline_takes_the_place_of_a_strategy() -> None:
    baseline = {"_target_": "membench.sweep.cells.baselines.PlainPyTorch"}
    assert isinstance(Cell.from_configuration(small_cell(strategy=baseline)).method.baseline, PlainPyTorch)


def test_a_papers_numbers_are_a_function_by_name() -> None:
    named = small_cell(metrics="experiments.vdnn.metrics.step_metrics")
    assert Cell.from_configuration(named).step_metrics is step_metrics


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("exchange", "never", "exchange 'never' is not known.* are: as_made, at_end"),
        ("metrics", "nowhere.at_all", "'nowhere.at_all' is not a function of any module"),
    ],
)
def test_a_wrong_value_is_refused_by_name(option: str, value: str, expected: str) -> None:
    with pytest.raises(MembenchError, match=expected):
        Cell.from_configuration(small_cell(**{option: value}))


def test_a_simulated_pytorch_step_is_captured_as_cuda_runs_it_in_the_cells_precision() -> None:
    framework = {
        "_target_": "membench.frameworks.pytorch.PyTorch",
        "efficiency": small_cell()["framework"]["efficiency"],
    }
    graphs = Graphs()
    peaks = {}
    for precision in (None, "fp32", "bf16"):
        options = {} if precision is None else {"precision": precision, "channels_last": True}
        cell = Cell.from_configuration(small_cell(framework=framework, **options))
        assert cell.captured_on() == AnyGpu(cell.simulated_device.compute_capability)
        peaks[precision] = graphs.lowered_at(cell, 4)(4).external_bytes
    assert peaks[None] == peaks["fp32"]
    labels_bytes = 4 * 8
    assert peaks["fp32"] - labels_bytes == 2 * (peaks["bf16"] - labels_bytes)
