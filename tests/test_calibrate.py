"""The fit reads the baseline's rows alone, and gives the committed constants each time."""

import csv
from pathlib import Path

import pytest
import yaml

from membench import calibrate, configuration
from membench.configuration import CONF_DIRECTORY
from membench.cost.roofline import RooflineCost
from membench.device import DeviceProfile
from membench.frameworks.caffe import Caffe
from membench.step import plan, simulated_step
from membench.strategies.network_wide import NetworkWide
from membench.task_graph import TaskGraph
from membench.units import MIB

REFERENCE = calibrate.PAPER_DIRECTORY / "reference.csv"


@pytest.fixture(scope="module")
def k40m() -> DeviceProfile:
    device: DeviceProfile = configuration.load("device", "k40m")
    return device


@pytest.fixture(scope="module")
def graphs() -> dict[str, TaskGraph]:
    paper = yaml.safe_load((calibrate.PAPER_DIRECTORY / "paper.yaml").read_text())
    models = (
        "LeNet",
        "Cifar10_quick",
        "AlexNet",
        "VGGNet-16",
        "GoogLeNet",
        "ResNet-34",
        "ResNet-50",
        "WRN-28-10",
    )
    return {model: calibrate.lowered_graph(paper["models"][model]["configuration"]) for model in models}


@pytest.fixture(scope="module")
def fitted(k40m: DeviceProfile, graphs: dict[str, TaskGraph]) -> calibrate.Fit:
    return calibrate.fit(REFERENCE, k40m, graphs)


def rewritten(target: Path, *, baseline: bool) -> Path:
    """Write the reference with other values in the baseline's rows, or in all rows but those."""
    with REFERENCE.open(newline="") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), reader.fieldnames
    for row in rows:
        if row["value"] and (row["system"] == "Caffe") is baseline:
            row["value"] = str(1.5 * float(row["value"]))
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or [])
        writer.writeheader()
        writer.writerows(rows)
    return target


def test_the_committed_file_is_what_the_command_writes(fitted: calibrate.Fit) -> None:
    text = calibrate.yaml_text(fitted, framework="caffe", device="k40m")
    assert (CONF_DIRECTORY / "framework" / "caffe.yaml").read_text() == text


def test_no_other_system_s_number_matters(
    fitted: calibrate.Fit, k40m: DeviceProfile, graphs: dict[str, TaskGraph], tmp_path: Path
) -> None:
    others = calibrate.fit(rewritten(tmp_path / "others.csv", baseline=False), k40m, graphs)
    assert others == fitted
    own = calibrate.fit(rewritten(tmp_path / "own.csv", baseline=True), k40m, graphs)
    assert own.efficiency.arithmetic < fitted.efficiency.arithmetic


def test_residuals_are_those_of_a_simulated_step(
    fitted: calibrate.Fit, k40m: DeviceProfile, graphs: dict[str, TaskGraph]
) -> None:
    framework: Caffe = configuration.load("framework", "caffe")
    assert framework.efficiency == fitted.efficiency
    cost = RooflineCost(k40m, framework.efficiency)
    for residual in fitted.times:
        if residual.row.model not in ("LeNet", "ResNet-50"):
            continue
        schedule = plan(graphs[residual.row.model], NetworkWide(), cost, None)
        steps = 20 * (2 if residual.row.model == "ResNet-50" else 1)
        step_time_s = simulated_step(schedule, k40m, cost).measure().step_time_s
        assert steps * step_time_s == pytest.approx(residual.fitted, rel=1e-6)


def test_rows_are_the_baseline_s_eight_times_and_three_memories(fitted: calibrate.Fit) -> None:
    assert [residual.row.value for residual in fitted.times] == [
        2.148, 7.223, 20.808, 91.815, 9.726, 37.387, 55.131, 79.397,
    ]  # fmt: skip
    assert [(residual.row.device, residual.row.value) for residual in fitted.memory] == [
        ("titan_z", 4426), ("k40m", 4430), ("k40m", 11425),
    ]  # fmt: skip


def test_large_networks_are_met(fitted: calibrate.Fit) -> None:
    """What the fit is good for: networks whose own arithmetic and traffic fill the time."""
    small = ("LeNet", "Cifar10_quick")
    assert all(abs(residual.error) < 0.06 for residual in fitted.times if residual.row.model not in small)
    assert all(abs(residual.error) < 0.001 for residual in fitted.memory)


def test_constants_mean_something(fitted: calibrate.Fit) -> None:
    assert 0.1 < fitted.efficiency.arithmetic < 1
    assert 0.1 < fitted.efficiency.memory < 1
    assert 1e-5 < fitted.efficiency.launch_s < 1e-3
    assert 50 * MIB < fitted.context_bytes < 500 * MIB
    assert 0 < fitted.workspace_share < 1


def test_resnet50_does_not_fit_the_smaller_device(graphs: dict[str, TaskGraph]) -> None:
    """Table 6: out of memory with Caffe on the TITAN Z, whatever the overhead."""
    graph = graphs["ResNet-50"]
    needed_bytes = sum(block.size_bytes for block in graph.blocks)
    assert needed_bytes > configuration.load("device", "titan_z").memory_bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["device=k80"], "there is no device 'k80'; choose one of k40_vdnn, k40m"),
        (["device=titan_z"], "no time of Caffe on device 'titan_z'"),
        (["framework=mxnet"], "no paper's rows to fit framework 'mxnet' on"),
        (["nonsense"], "'nonsense' is no setting"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main(arguments) == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_a_broken_reference_is_one_line_too(tmp_path: Path, k40m: DeviceProfile) -> None:
    broken = tmp_path / "reference.csv"
    broken.write_text("item,metric,system,model,device,value\nTable 5,time_20_iterations,Caffe,LeNet,K80,1\n")
    with pytest.raises(calibrate.MembenchError, match="line 1 of Caffe in Table 5"):
        calibrate.fit(broken, k40m, {})
