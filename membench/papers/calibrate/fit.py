"""Fit of all constants of one framework."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from membench.core.configuration import read_options
from membench.core.device import DeviceProfile
from membench.core.efficiency import Efficiency
from membench.core.errors import MembenchError
from membench.core.task_graph import TaskGraph
from membench.frameworks.lowering import lower_layers
from membench.papers.calibrate.least_squares import Residual
from membench.papers.calibrate.memory import Memory
from membench.papers.calibrate.rows import (
    MEMORY_ROWS,
    PAPER_DIRECTORY,
    TIME_ROWS,
    baseline_rows,
    captured_graph,
)
from membench.papers.calibrate.subjects import find_subject
from membench.papers.calibrate.times import fit_times


@dataclass(frozen=True)
class Fit:
    """Constants of a framework, and how well each row of the paper is met."""

    efficiency: Efficiency
    times: tuple[Residual, ...]
    memory: Memory


def fit(
    framework: str, reference: Path, device: DeviceProfile, graphs: Mapping[str, TaskGraph] | None = None
) -> Fit:
    """Fit all constants.

    Args:
        framework: its name in ``conf/framework``.
        reference: the paper's numbers.
        device: where the times were measured.
        graphs: as captured, by the paper's name of the model; missing ones are captured.

    Raises:
        MembenchError: no time of the framework was measured on this device.
    """
    subject = find_subject(framework)
    system = subject.library.framework
    paper = read_options(PAPER_DIRECTORY / "paper.yaml")
    times = baseline_rows(reference, item=TIME_ROWS[0], metric=TIME_ROWS[1], system=system, paper=paper)
    times = [row for row in times if row.device == device.name]
    memory = baseline_rows(reference, item=MEMORY_ROWS[0], metric=MEMORY_ROWS[1], system=system, paper=paper)
    if not times:
        raise MembenchError(
            f"{reference.name} has no time of {system} on device {device.name!r}; use device=k40m"
        )
    lowered = {}
    for model in {row.model: None for row in (*times, *memory)}:
        known = (graphs or {}).get(model) or captured_graph(paper["models"][model]["configuration"])
        lowered[model] = lower_layers(known, subject.library)
    efficiency, residuals = fit_times(times, lowered, device)
    return Fit(efficiency, residuals, subject.memory(memory, lowered))
