"""Fit a framework's constants on its own rows of a paper's tables.

    python -m membench.calibrate framework=caffe device=k40m

Reads what Layrub's paper measured of *Caffe* (Table 5: seconds of 20 iterations; Table 6: runtime memory), and no row of
any other system. Non-negative least squares on relative errors; prints every residual, and writes
``conf/framework/caffe.yaml``, the same bytes each time.

Seconds of a step = operations / (arithmetic * peak rate) + bytes / (memory * peak bandwidth)
                    + launch_s * tasks + step_s

Bytes on the device = the network's blocks + context_bytes
                      + workspace_share * bytes of the convolutions' outputs
"""

import csv
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from scipy.optimize import nnls

from membench import configuration
from membench.capture.capture import capture
from membench.configuration import CONF_DIRECTORY, instantiate
from membench.cost.roofline import ARITHMETIC_KINDS, RooflineCost
from membench.device import DeviceProfile
from membench.efficiency import Efficiency
from membench.errors import MembenchError
from membench.frameworks.caffe import Caffe, convolution_bytes
from membench.task_graph import TaskGraph
from membench.units import MIB
from membench.workload import Workload

PAPER_DIRECTORY = CONF_DIRECTORY.parent / "experiments" / "layrub"
ITERATIONS = 20

_TIME_ROWS = ("Table 5", "time_20_iterations")
_MEMORY_ROWS = ("Table 6", "runtime_memory")


@dataclass(frozen=True)
class BaselineRow:
    """One number that the paper measured of the framework itself.

    Attributes:
        device: the name in ``conf/device``.
        value: seconds of 20 iterations, or MiB.
        steps_per_iteration: forward and backward passes of one solver iteration.
    """

    model: str
    device: str
    value: float
    steps_per_iteration: int


@dataclass(frozen=True)
class Residual:
    """A fitted value beside the paper's; `left_out` is the relative error when the row does not take part."""

    row: BaselineRow
    fitted: float
    left_out: float

    @property
    def error(self) -> float:
        return self.fitted / self.row.value - 1


@dataclass(frozen=True)
class Fit:
    efficiency: Efficiency
    context_bytes: int
    workspace_share: float
    times: tuple[Residual, ...]
    memory: tuple[Residual, ...]


def baseline_rows(path: Path, *, item: str, metric: str, paper: dict[str, Any]) -> list[BaselineRow]:
    """Return Caffe's rows of one table; a row without a number (out of memory) is no measurement.

    Raises:
        MembenchError: the file lacks a column, or a number or device in it makes no sense.
    """
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        try:
            for row in csv.DictReader(file):
                if (row["item"], row["metric"], row["system"]) == (item, metric, "Caffe") and row["value"]:
                    device = paper["devices"][row["device"]]
                    steps = paper["models"][row["model"]].get("steps_per_iteration", 1)
                    rows.append(BaselineRow(row["model"], device, float(row["value"]), steps))
        except (KeyError, ValueError) as error:
            raise MembenchError(f"{path.name}, line {len(rows) + 1} of Caffe in {item}: {error}") from error
    return rows


def lowered_graph(name: str) -> TaskGraph:
    """Return the graph of ``conf/model/<name>.yaml`` at its own batch size as Caffe keeps it, without overhead."""
    model = yaml.safe_load((CONF_DIRECTORY / "model" / f"{name}.yaml").read_text())
    with torch.device("meta"):
        module, loss = instantiate(model["module"]), instantiate(model["loss"])
        inputs = torch.empty(model["batch_size"], *model["input_shape"])
        targets = torch.empty(model["batch_size"], dtype=torch.int64)
    captured = capture(Workload(name, module, loss, (inputs,), (targets,)))
    return Caffe(Efficiency(1.0, 1.0), context_bytes=0, workspace_share=0.0).lower(captured.graph)


def fit(reference: Path, device: DeviceProfile, graphs: dict[str, TaskGraph] | None = None) -> Fit:
    """Fit all constants.

    Args:
        reference: the paper's numbers.
        device: where the times were measured.
        graphs: by the paper's name of the model, where they are at hand; missing ones are captured.

    Raises:
        MembenchError: no time of the baseline was measured on this device.
    """
    paper = yaml.safe_load((PAPER_DIRECTORY / "paper.yaml").read_text())
    times = baseline_rows(reference, item=_TIME_ROWS[0], metric=_TIME_ROWS[1], paper=paper)
    times = [row for row in times if row.device == device.name]
    memory = baseline_rows(reference, item=_MEMORY_ROWS[0], metric=_MEMORY_ROWS[1], paper=paper)
    if not times:
        raise MembenchError(
            f"{reference.name} has no time of Caffe on device {device.name!r}; use device=k40m"
        )
    graphs = dict(graphs or {})
    for row in (*times, *memory):
        if row.model not in graphs:
            graphs[row.model] = lowered_graph(paper["models"][row.model]["configuration"])
    efficiency, time_residuals = _fit_times(times, graphs, device)
    context_bytes, workspace_share, memory_residuals = _fit_memory(memory, graphs)
    return Fit(efficiency, context_bytes, workspace_share, time_residuals, memory_residuals)


def _fit_times(
    rows: list[BaselineRow], graphs: dict[str, TaskGraph], device: DeviceProfile
) -> tuple[Efficiency, tuple[Residual, ...]]:
    terms = [_time_terms(row, graphs[row.model], device) for row in rows]
    values = [row.value for row in rows]
    efficiency = _efficiency(_least_squares(terms, values))
    cost = RooflineCost(device, efficiency)
    residuals = []
    for row, left_out in zip(rows, _left_out_errors(terms, values), strict=True):
        tasks = graphs[row.model].tasks
        step_s = sum(cost.launch_time_s(task) + cost.task_time_s(task) for task in tasks)
        residuals.append(Residual(row, ITERATIONS * row.steps_per_iteration * step_s, left_out))
    return efficiency, tuple(residuals)


def _time_terms(row: BaselineRow, graph: TaskGraph, device: DeviceProfile) -> list[float]:
    """Return what each parameter multiplies: seconds at peak rates, tasks, steps."""
    operations = sum(task.operations for task in graph.tasks if task.kind in ARITHMETIC_KINDS)
    moved_bytes = sum(task.moved_bytes for task in graph.tasks if task.kind not in ARITHMETIC_KINDS)
    steps = ITERATIONS * row.steps_per_iteration
    at_peak_s = operations / device.arithmetic_ops_per_s, moved_bytes / device.memory_bytes_per_s
    return [steps * term for term in (*at_peak_s, len(graph.tasks), 1.0)]


def _efficiency(parameters: NDArray[np.float64]) -> Efficiency:
    arithmetic, memory, launch_s, step_s = (float(parameter) for parameter in parameters)
    if not (arithmetic and memory):
        raise MembenchError(
            "the fit gives the device an infinite rate; the reference rows contradict each other"
        )
    return Efficiency(_rounded(1 / arithmetic), _rounded(1 / memory), _rounded(launch_s), _rounded(step_s))


def _fit_memory(
    rows: list[BaselineRow], graphs: dict[str, TaskGraph]
) -> tuple[int, float, tuple[Residual, ...]]:
    blocks = [sum(block.size_bytes for block in graphs[row.model].blocks) / MIB for row in rows]
    terms = [[1.0, convolution_bytes(graphs[row.model]) / MIB] for row in rows]
    values = [row.value for row in rows]
    rest = [value - held for value, held in zip(values, blocks, strict=True)]
    context_mib, share = (float(parameter) for parameter in _least_squares(terms, rest, scale=values))
    context_bytes, workspace_share = round(context_mib * MIB), _rounded(share)
    left_out = _left_out_errors(terms, rest, scale=values)
    residuals = []
    for row, held, (_, outputs), error in zip(rows, blocks, terms, left_out, strict=True):
        overhead = context_bytes / MIB + outputs * workspace_share
        residuals.append(Residual(row, held + overhead, error))
    return context_bytes, workspace_share, tuple(residuals)


def _least_squares(
    terms: Iterable[Iterable[float]], values: list[float], scale: list[float] | None = None
) -> NDArray[np.float64]:
    """Return the non-negative parameters that make the errors, each divided by `scale`, least."""
    divisors = np.array(values if scale is None else scale)
    matrix = np.array([list(row) for row in terms]) / divisors[:, None]
    return cast(NDArray[np.float64], nnls(matrix, np.array(values) / divisors)[0])


def _left_out_errors(
    terms: list[list[float]], values: list[float], scale: list[float] | None = None
) -> list[float]:
    """Return each row's relative error under the parameters that the other rows give."""
    divisors = values if scale is None else scale
    errors = []
    for left_out in range(len(values)):
        others = [i for i in range(len(values)) if i != left_out]
        parameters = _least_squares(
            [terms[i] for i in others], [values[i] for i in others], [divisors[i] for i in others]
        )
        predicted = float(np.dot(terms[left_out], parameters))
        errors.append((predicted - values[left_out]) / divisors[left_out])
    return errors


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def residual_lines(result: Fit) -> list[str]:
    """Return the residuals as aligned lines of text."""
    lines = ["Table 5, seconds of 20 iterations        paper     fitted    error   left out"]
    lines += [_residual_line(residual) for residual in result.times]
    lines += ["Table 6, MB (MiB) at run time            paper     fitted    error   left out"]
    return lines + [_residual_line(residual) for residual in result.memory]


def _residual_line(residual: Residual) -> str:
    name = f"{residual.row.model} on {residual.row.device}"
    numbers = f"{residual.row.value:10.3f} {residual.fitted:10.3f}"
    return f"  {name:<32} {numbers} {residual.error:+8.1%} {residual.left_out:+10.1%}"


def yaml_text(result: Fit, *, framework: str, device: str) -> str:
    """Return the configuration file's text."""
    efficiency = result.efficiency
    comments = [
        f"Written by: python -m membench.calibrate framework={framework} device={device}",
        "Fitted on Caffe's own rows of Layrub's Tables 5 and 6, and on no other system's. Residuals:",
        *residual_lines(result),
        "'left out': the error of a row under the constants that all other rows give.",
        "LeNet and CIFAR10-quick compute for milliseconds; most of what the paper measures there belongs to no task.",
        "Two constants on two networks: the memory's residuals prove little. That workspace grows with the map (and is not",
        "one size per convolution, which fits as well) was chosen knowing that Layrub's rows of deep networks fit 12 GB.",
    ]
    return "\n".join(
        [
            *(f"# {comment}" for comment in comments),
            "_target_: membench.frameworks.caffe.Caffe",
            "efficiency:",
            "  _target_: membench.efficiency.Efficiency",
            f"  arithmetic: {efficiency.arithmetic!r}  # of the peak arithmetic rate",
            f"  memory: {efficiency.memory!r}  # of the peak memory bandwidth",
            f"  launch_s: {efficiency.launch_s!r}  # per task",
            f"  step_s: {efficiency.step_s!r}  # per step",
            f"context_bytes: {result.context_bytes}  # {result.context_bytes / MIB:.1f} MiB",
            f"workspace_share: {result.workspace_share!r}  # of each convolution's output map",
            "",
        ]
    )


def main(arguments: list[str]) -> int:
    """Run the command; errors are one line."""
    try:
        settings = _parse(arguments)
        device: DeviceProfile = configuration.load("device", settings["device"])
        result = fit(PAPER_DIRECTORY / "reference.csv", device)
    except (MembenchError, OSError) as error:
        print(f"membench.calibrate: {error}", file=sys.stderr)
        return 1
    print("\n".join(residual_lines(result)))
    target = CONF_DIRECTORY / "framework" / f"{settings['framework']}.yaml"
    target.write_text(yaml_text(result, framework=settings["framework"], device=settings["device"]))
    print(f"{result.efficiency}\nwrote {target}")
    return 0


def _parse(arguments: list[str]) -> dict[str, str]:
    settings = {"framework": "caffe", "device": "k40m"}
    for argument in arguments:
        key, separator, value = argument.partition("=")
        if key not in settings or not separator:
            raise MembenchError(f"{argument!r} is no setting; write framework=caffe device=k40m")
        settings[key] = value
    if settings["framework"] != "caffe":
        raise MembenchError(f"no paper's rows to fit framework {settings['framework']!r} on; choose caffe")
    return settings


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
