"""The baseline's rows of a paper's tables, and the graphs of the networks in them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from membench.capture.capture import capture
from membench.core import configuration
from membench.core.configuration import ROOT
from membench.core.errors import MembenchError
from membench.core.task_graph import TaskGraph
from membench.papers.experiment import steps_per_iteration
from membench.papers.loader import read_reference
from membench.sweep.cell import workload_of

PAPER_DIRECTORY = ROOT / "experiments" / "layrub"

TIME_ROWS = ("Table 5", "time_20_iterations")
MEMORY_ROWS = ("Table 6", "runtime_memory")


@dataclass(frozen=True)
class BaselineRow:
    """One number that the paper measured of the framework itself.

    Attributes:
        device: the name in ``conf/device``.
        value: seconds of 20 iterations, or MiB.
        steps_per_iteration: forward and backward passes of one iteration.
    """

    model: str
    device: str
    value: float
    steps_per_iteration: int


def baseline_rows(
    path: Path, *, item: str, metric: str, system: str, paper: dict[str, Any]
) -> list[BaselineRow]:
    """Return a system's rows of one table; a row without a number (out of memory) is no measurement.

    Args:
        path: the paper's numbers.
        paper: its vocabulary, as ``paper.yaml`` has it.

    Raises:
        MembenchError: the file is no reference, or a model or device in it is none of the vocabulary's.
    """
    rows = []
    for row in read_reference(path):
        if (row.item, row.metric, row.system) == (item, metric, system) and row.value is not None:
            try:
                device, model = paper["devices"][row.device], paper["models"][row.model]
            except KeyError as error:
                raise MembenchError(f"line {row.line} of {path.name}: there is no {error}") from error
            steps = steps_per_iteration(model, paper["systems"][system])
            rows.append(BaselineRow(row.model, device, row.value, steps))
    return rows


def captured_graph(name: str) -> TaskGraph:
    """Return the training step of ``conf/model/<name>.yaml`` at its own batch size, as captured."""
    model = configuration.read("model", name)
    cell = {"model": model, "batch_size": model["batch_size"], "backend": {"name": "simulated"}, "seed": 0}
    return capture(workload_of(cell)).graph
