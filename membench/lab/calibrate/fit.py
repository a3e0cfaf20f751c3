"""Fit of a framework's constants to its rows of Layrub's Tables 5 and 6, and the text of its configuration file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from membench.core.configuration import load, read, read_options
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency
from membench.core.units import MIB
from membench.cost.roofline import RooflineCost
from membench.frameworks.base import Framework
from membench.frameworks.caffe import CAFFE, Caffe, convolution_groups
from membench.frameworks.lowering import lower_layers
from membench.frameworks.mxnet import MXNET
from membench.frameworks.tensorflow import TENSORFLOW
from membench.lab.calibrate.constants import Memory, MemoryRow, fit_memory, fit_times
from membench.lab.calibrate.least_squares import Residual
from membench.lab.calibrate.rows import PAPER_DIRECTORY, BaselineRow, baseline_rows, captured_graph
from membench.strategies.base import find_strategy

LIBRARIES = {"caffe": CAFFE, "mxnet": MXNET, "tensorflow": TENSORFLOW}
"""The layers of each framework that is fitted, by its name in ``conf/framework``."""
_TIME_ROWS = ("Table 5", "time_20_iterations")
_MEMORY_ROWS = ("Table 6", "runtime_memory")
_MEMORY_OF_LAYRUB = ("Layrub-hybrid", "ResNet-1517")
"""The one row of a method on which memory is fitted as well: Caffe's own have 16 convolutions more or less, too few."""


@dataclass(frozen=True)
class Fit:
    """Constants of a framework, and how well each row of the paper is met; memory is None without rows of it."""

    efficiency: Efficiency
    times: tuple[Residual, ...]
    memory: Memory | None


def fit(framework: str, reference: Path, device: DeviceProfile, graphs: Mapping[str, TaskGraph] | None = None) -> Fit:
    """Fit all constants.

    Args:
        framework: its name in ``conf/framework``.
        reference: the paper's numbers.
        device: where the times were measured.
        graphs: as captured, by the paper's name of the model; missing ones are captured.

    Raises:
        MembenchError: the paper has no rows of that framework, or no time of it on this device.
    """
    if framework not in LIBRARIES:
        choices = ", ".join(LIBRARIES)
        raise MembenchError(f"no paper's rows to fit framework {framework!r} on; choose one of {choices}")
    library = LIBRARIES[framework]
    system, paper = library.framework, read_options(PAPER_DIRECTORY / "paper.yaml")
    times = [row for row in baseline_rows(reference, *_TIME_ROWS, system, paper) if row.device == device.name]
    memory = _memory_rows(reference, system, paper)
    if not times:
        raise MembenchError(f"{reference.name} has no time of {system} on device {device.name!r}; use device=k40m")
    captured = dict(graphs or {})
    for model in {row.model: None for row in (*times, *(row for row, _ in memory))} - captured.keys():
        captured[model] = captured_graph(paper["models"][model]["configuration"])
    lowered = {row.model: lower_layers(captured[row.model], library) for row in times}
    held = [_held(row, paper["systems"][of], captured[row.model]) for row, of in memory]
    given: Framework = load("framework", framework)
    return Fit(*fit_times(times, lowered, device, given.efficiency), fit_memory(held) if memory else None)


def _memory_rows(reference: Path, system: str, paper: dict[str, Any]) -> list[tuple[BaselineRow, str]]:
    """Return the rows of memory to which Caffe's constants are fitted, with their systems; none of others."""
    own = [(row, system) for row in baseline_rows(reference, *_MEMORY_ROWS, system, paper)]
    if not own:
        return []
    method, model = _MEMORY_OF_LAYRUB
    rows = baseline_rows(reference, *_MEMORY_ROWS, method, paper)
    return own + [(row, method) for row in rows if row.model == model]


def _held(row: BaselineRow, system: Mapping[str, Any], captured: TaskGraph) -> MemoryRow:
    """Return a row of memory with what its system and its card hold without Caffe's constants."""
    device: DeviceProfile = load("device", row.device)
    caffe = Caffe(Efficiency(1.0, 1.0), 0, 0, read("framework", "caffe")["prefetched_batches"])
    graph = caffe.lower(captured)
    strategy = find_strategy(system["strategy"])(**system.get("set", {}))
    cost = RooflineCost(device, caffe.efficiency)
    held_bytes = strategy.schedule(graph, cost, None).peak_bytes + device.idle_bytes
    return MemoryRow(row, held_bytes, convolution_groups(graph))


def residual_lines(result: Fit) -> list[str]:
    """Return the residuals as aligned lines of text."""
    lines = ["Table 5, seconds                         paper     fitted    error   left out"]
    lines += [_residual_line(residual) for residual in result.times]
    if result.memory:
        lines.append("Table 6, MB (MiB) at run time            paper     fitted    error   left out")
        lines += [_residual_line(residual) for residual in result.memory.residuals]
    return lines


def _residual_line(residual: Residual) -> str:
    name = f"{residual.row.model} on {residual.row.device}"
    numbers = f"{residual.row.value:10.3f} {residual.fitted:10.3f}"
    return f"  {name:<32} {numbers} {residual.error:+8.1%} {residual.left_out:+10.1%}"


def with_fit(text: str, result: Fit) -> str:
    """Return a configuration file's text with a fit's constants and residuals in place of its own; all else stays.

    Raises:
        MembenchError: the text has no line of a constant, or not one block of residuals.
    """
    residuals = "".join(f"# {line}\n" for line in residual_lines(result))
    text, blocks = re.subn(r"(# Table \d.*\n(#   .*\n)+)+", residuals, text)
    constants = {name: getattr(result.efficiency, name) for name in ("arithmetic", "memory", "launch_s", "step_s")}
    if memory := result.memory:
        constants["context_bytes"] = f"{memory.context_bytes}  # {memory.context_bytes / MIB:.1f} MiB"
        constants["group_bytes"] = f"{memory.group_bytes}  # {memory.group_bytes / MIB:.3f} MiB"
    for name, value in constants.items():
        text, lines = re.subn(rf"(?m)^( *{name}:) \S+(  # .* MiB)?", rf"\1 {value}", text)
        if (blocks, lines) != (1, 1):
            raise MembenchError(f"the file to fit needs one block of residuals, and one line of {name}")
    return text
