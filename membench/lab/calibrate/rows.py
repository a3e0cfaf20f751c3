"""Rows of a paper's tables that measure a framework itself, and the graphs of the networks in them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.layrub.metrics import table_5_steps
from membench.capture.capture import capture
from membench.core.configuration import ROOT, read
from membench.core.graph.task_graph import TaskGraph
from membench.lab.papers.reading.loader import read_reference, reading_as
from membench.sweep.cells.model import Model

PAPER_DIRECTORY = ROOT / "experiments" / "layrub"


@dataclass(frozen=True)
class BaselineRow:
    """One number that the paper measured of the framework itself.

    Attributes:
        device: the name in ``conf/device``.
        value: seconds, or MiB.
        steps: forward and backward passes that take these seconds.
    """

    model: str
    device: str
    value: float
    steps: float


def baseline_rows(path: Path, item: str, metric: str, system: str, paper: dict[str, Any]) -> list[BaselineRow]:
    """Return a system's rows of one table; rows without a number (out of memory) are left out.

    Args:
        path: the paper's numbers.
        paper: its vocabulary, as ``paper.yaml`` has it.

    Raises:
        MembenchError: the file does not read as a reference, or the vocabulary lacks a model or device in it.
    """
    rows = []
    for row in read_reference(path):
        if (row.item, row.metric, row.system) == (item, metric, system) and row.value is not None:
            with reading_as("a baseline's row", f"line {row.line} of {path.name}"):
                device, model = paper["devices"][row.device], paper["models"][row.model]
            batch_size = read("model", model["configuration"])["batch_size"]
            steps = table_5_steps(model, paper["systems"][system], paper["training_images"], batch_size)
            rows.append(BaselineRow(row.model, device, row.value, steps))
    return rows


def captured_graph(name: str) -> TaskGraph:
    """Return the captured training step of ``conf/model/<name>.yaml`` at its own batch size."""
    batch_size: int = read("model", name)["batch_size"]
    return capture(Model.named(name).workload(batch_size, seed=0, device="meta")).graph
