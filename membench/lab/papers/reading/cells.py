"""Configurations of cells, from a paper's words."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from hydra import compose

from membench.core import configuration
from membench.core.record import Configuration
from membench.lab.papers.reading.experiment import Paper, PaperCell, framework_of, listed
from membench.lab.papers.reading.loader import merged
from membench.sweep.composition import cell_configuration, hydra_composition


def compose_cells(paper: Paper, cells: Sequence[PaperCell]) -> dict[PaperCell, Configuration]:
    """Return each cell's configuration, equal to Hydra's own composition, which takes a quarter of a second each.

    A batch size that is to be searched for stays ``largest``.

    Raises:
        MembenchError: a name of a cell is not in the paper's vocabulary.
    """
    with hydra_composition():
        defaults = cell_configuration(compose("config"))
    read = cache(configuration.read)
    return {cell: defaults | _changes(paper, cell, read) for cell in cells}


def _changes(paper: Paper, cell: PaperCell, read: Callable[[str, str], dict[str, Any]]) -> dict[str, Any]:
    system = listed("system", cell.system, paper.systems)
    model = read("model", listed("model", cell.model, paper.models)["configuration"])
    changes = {
        "model": model,
        "batch_size": model["batch_size"] if cell.batch_size is None else cell.batch_size,
        "strategy": read("strategy", system["strategy"]) | system.get("set", {}),
        "framework": read("framework", framework_of(paper.models[cell.model], system)),
        "device": read("device", listed("device", cell.device, paper.devices)),
        "cluster": read("cluster", paper.clusters.get(cell.device, "one")) | system.get("cluster", {}),
        "budget": cell.budget or system.get("budget"),
        "micro_batch": system.get("micro_batch"),
        **({"exchange": system["exchange"]} if "exchange" in system else {}),
        "metrics": paper.step_metrics or None,
    }
    framework = framework_of(paper.models[cell.model], system)
    words = {"model": cell.model, "system": cell.system, "device": cell.device, "framework": framework}
    for change in paper.cell_changes:
        if change.matches(words):
            changes = merged(changes, change.set)
    return changes
