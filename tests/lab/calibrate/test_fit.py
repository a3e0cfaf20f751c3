"""The fits read only rows of baselines, and always give the committed constants."""

import csv
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from membench.cli.main import main
from membench.core import configuration
from membench.core.configuration import CONF_DIRECTORY
from membench.core.errors import MembenchError
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.core.units import GIB, MIB
from membench.cost.roofline import RooflineCost
from membench.frameworks.base import Framework
from membench.frameworks.caffe import CAFFE
from membench.frameworks.lowering import lower_layers
from membench.lab.calibrate.fit import LIBRARIES, Fit, fit, with_fit
from membench.lab.calibrate.rows import PAPER_DIRECTORY, captured_graph
from membench.steps.plan import plan
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import Strategy
from membench.strategies.best_fit import BestFit
from membench.strategies.eager import Eager
from membench.strategies.network_wide import NetworkWide

REFERENCE = PAPER_DIRECTORY / "reference.csv"
SYSTEMS = {"caffe": "Caffe", "mxnet": "MXNet", "tensorflow": "TensorFlow"}


@pytest.fixture(scope="module")
def k40m() -> DeviceProfile:
    device: DeviceProfile = configuration.load("device", "k40m")
    return device


PAPER = yaml.safe_load((PAPER_DIRECTORY / "paper.yaml").read_text())


@cache
def captured(model: str) -> TaskGraph:
    return captured_graph(PAPER["models"][model]["configuration"])


@pytest.fixture(scope="module")
def graphs() -> dict[str, TaskGraph]:
    return {model: captured(model) for model in (*PAPER["sets"]["table 5"], "ResNet-1517")}


@pytest.fixture(scope="module")
def fits(k40m: DeviceProfile, graphs: dict[str, TaskGraph]) -> dict[str, Fit]:
    return {framework: fit(framework, REFERENCE, k40m, graphs) for framework in LIBRARIES}


@pytest.fixture(scope="module")
def caffe(fits: dict[str, Fit]) -> Fit:
    return fits["caffe"]


def rewritten(target: Path, system: str, *, own: bool) -> Path:
    """Write the reference with other values in a system's rows, or in all rows but those."""
    with REFERENCE.open(newline="") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), reader.fieldnames
    for row in rows:
        fitted_too = (row["item"], row["model"], row["system"]) == ("Table 6", "ResNet-1517", "Layrub-hybrid")
        if row["value"] and (row["system"] == system) is own and not fitted_too:
            row["value"] = str(1.5 * float(row["value"]))
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns or [])
        writer.writeheader()
        writer.writerows(rows)
    return target


@pytest.mark.slow
@pytest.mark.parametrize("framework", SYSTEMS)
def test_the_committed_file_is_what_the_command_writes(framework: str, fits: dict[str, Fit]) -> None:
    text = (CONF_DIRECTORY / "framework" / f"{framework}.yaml").read_text()
    assert with_fit(text, fits[framework]) == text
    assert text.startswith(f"# Written by: membench fit framework={framework} device=k40m\n")
    loaded: Framework = configuration.load("framework", framework)
    assert loaded.efficiency == fits[framework].efficiency


@pytest.mark.slow
def test_the_command_restores_constants_and_residuals_and_keeps_comments(caffe: Fit) -> None:
    text = (CONF_DIRECTORY / "framework" / "caffe.yaml").read_text()
    other = re.sub(r"(?m)^( *(?!prefetched|half_waves|tile_channels)[a-z_]+: )[\d.]+", r"\g<1>5", text)
    other = re.sub(r"(?m)# [\d.]+ MiB$", "# 5.0 MiB", other)
    other = re.sub(r"(?m)^#   ResNet-34.*\n", "", other).replace("#   LeNet on", "#   Another on")
    assert other != text
    assert with_fit(other, caffe) == text
    for broken in (text.replace("step_s:", "# step_s:"), text.replace("#   ", "# "), f"{text}memory: 1\n"):
        with pytest.raises(MembenchError, match="the file to fit needs one block of residuals"):
            with_fit(broken, caffe)


@pytest.mark.parametrize(("framework", "limit_gib"), [("mxnet", 1), ("tensorflow", 4)])
def test_assumed_constants_are_those_of_their_sources(framework: str, limit_gib: int) -> None:
    """The paper prints no memory of these frameworks: the context is assumed, the rates are torch7's."""
    assumed = configuration.read("framework", framework)
    assert assumed["context_bytes"] == 400 * MIB
    rates = configuration.read("framework", "torch7")["efficiency"]["convolution"]
    assert assumed["autotuner"]["rates"] == rates
    assert assumed["autotuner"]["limit_bytes"] == limit_gib * GIB


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "system"), SYSTEMS.items())
def test_numbers_of_other_systems_do_not_matter(
    framework: str, system: str, fits: dict[str, Fit], k40m: DeviceProfile, graphs: dict[str, TaskGraph], tmp_path: Path
) -> None:
    """MXNet-memonger's least of all: it is judged."""
    others = rewritten(tmp_path / "others.csv", system, own=False)
    assert fit(framework, others, k40m, graphs) == fits[framework]
    own = rewritten(tmp_path / "own.csv", system, own=True)
    slower = fit(framework, own, k40m, graphs).efficiency
    assert slower.arithmetic < fits[framework].efficiency.arithmetic


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "strategy", "model", "steps"),
    [
        ("caffe", NetworkWide(), "LeNet", 937.5),
        ("caffe", NetworkWide(), "ResNet-50", 40),
        ("mxnet", Eager(), "ResNet-50", 20),
        ("tensorflow", BestFit(), "ResNet-50", 20),
    ],
)
def test_residuals_are_those_of_a_simulated_step(
    framework: str,
    strategy: Strategy,
    model: str,
    steps: float,
    fits: dict[str, Fit],
    k40m: DeviceProfile,
    graphs: dict[str, TaskGraph],
) -> None:
    """An iteration of the authors' Caffe is two steps of a ResNet; no other framework's is."""
    loaded: Framework = configuration.load("framework", framework)
    cost = RooflineCost(k40m, loaded.efficiency)
    schedule = plan(loaded.lower(graphs[model]), strategy, cost, None)
    [residual] = [residual for residual in fits[framework].times if residual.row.model == model]
    assert residual.row.steps == steps
    step_time_s = simulated_step((RepeatedSchedule(schedule),), cost).step_time_s
    assert steps * step_time_s == pytest.approx(residual.fitted, rel=1e-6)


@pytest.mark.slow
def test_fitted_rows_are_those_of_the_baseline(fits: dict[str, Fit]) -> None:
    assert {name: [residual.row.value for residual in fitted.times] for name, fitted in fits.items()} == {
        "caffe": [2.148, 7.223, 20.808, 91.815, 9.726, 37.387, 55.131, 79.397],
        "mxnet": [2.373, 5.478, 27.343, 44.209, 8.926, 13.897, 17.947],
        "tensorflow": [5.143, 19.161, 64.060, 10.101, 15.951, 42.394],
    }
    memory = {
        name: [(r.row.device, r.row.value) for r in fitted.memory.residuals]
        for name, fitted in fits.items()
        if fitted.memory
    }
    assert memory == {"caffe": [("titan_z", 4426), ("k40m", 4430), ("k40m", 11425), ("k40m", 11239)]}


@pytest.mark.slow
def test_fitted_times_are_met(fits: dict[str, Fit]) -> None:
    """All but AlexNet under MXNet, the one that does not fit: see its configuration file."""
    limits = {"caffe": 0.16, "mxnet": 0.25, "tensorflow": 0.14}
    for framework, limit in limits.items():
        errors = {r.row.model: abs(r.error) for r in fits[framework].times}
        if framework == "mxnet":
            assert errors.pop("AlexNet") > 0.4
        assert max(errors.values()) < limit
    memory = fits["caffe"].memory
    assert memory
    assert all(abs(residual.error) < 0.007 for residual in memory.residuals)


@pytest.mark.slow
def test_hardly_any_time_of_a_step_belongs_to_no_task(fits: dict[str, Fit]) -> None:
    """LeNet's and CIFAR10-quick's rows are epochs; as 20 iterations they left 0.12 s a step and more."""
    assert all(found.efficiency.step_s < 0.005 for found in fits.values())


@pytest.mark.slow
@pytest.mark.parametrize("framework", SYSTEMS)
def test_efficiencies_are_below_the_peak(framework: str, fits: dict[str, Fit]) -> None:
    efficiency = fits[framework].efficiency
    assert 0.1 < efficiency.arithmetic < 1
    assert 0.05 < efficiency.memory < 1
    assert 0 <= efficiency.launch_s < 1e-3


@pytest.mark.slow
def test_fitted_memory_constants_are_plausible(caffe: Fit) -> None:
    assert caffe.memory
    assert 50 * MIB < caffe.memory.context_bytes < 500 * MIB
    assert MIB < caffe.memory.group_bytes < 3 * 8 * MIB  # three streams, handles, and workspaces of up to 8 MiB


def test_resnet50_does_not_fit_the_smaller_device() -> None:
    """Table 6: out of memory with Caffe on the TITAN Z at any overhead."""
    graph = lower_layers(captured("ResNet-50"), CAFFE)
    needed_bytes = sum(block.size_bytes for block in graph.blocks)
    assert needed_bytes > configuration.load("device", "titan_z").memory_bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["framework=caffe", "device=m60"], "device 'm60' is not known; there are: "),
        (["framework=caffe", "device=titan_z"], "no time of Caffe on device 'titan_z'"),
        (["framework=mxnet", "device=titan_z"], "no time of MXNet on device 'titan_z'"),
        (
            ["framework=torch7", "device=k40m"],
            "no paper's rows to fit framework 'torch7' on; choose one of caffe, mxnet",
        ),
        (["nonsense"], "'nonsense' is not a choice; write option=value"),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out


def test_a_broken_reference_is_one_line_too(tmp_path: Path, k40m: DeviceProfile) -> None:
    broken = tmp_path / "reference.csv"
    head = REFERENCE.read_text().splitlines()[0]
    broken.write_text(f"{head}\nTable 5,time_20_iterations,Caffe,LeNet,K80,1\n")
    with pytest.raises(MembenchError, match="line 2 of reference.csv does not read as a number of the paper"):
        fit("caffe", broken, k40m, {})
    broken.write_text(REFERENCE.read_text().replace("NVIDIA Tesla K40M", "K80"))
    with pytest.raises(MembenchError, match="of reference.csv does not read as a baseline's row: there is no 'K80'"):
        fit("caffe", broken, k40m, {})
