"""Configurations of cells, from a paper's words."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from hydra import compose

from membench.core import configuration
from membench.core.record import Configuration
from membench.lab.papers.reading.experiment import Paper, PaperCell, framework_of, listed
from membench.lab.papers.reading.loader import merged
from membench.sweep.composition import cell_configuration, hydra_composition

_read = cache(configuration.read)


def compose_cells(paper: Paper, cells: Sequence[PaperCell]) -> dict[PaperCell, Configuration]:
    """Return each cell's configuration, equal to Hydra's own composition, which takes a quarter of a second each.

    A batch size that is to be searched for stays ``largest``.

    Raises:
        MembenchError: a name of a cell is not in the paper's vocabulary.
    """
    with hydra_composition():
        defaults = cell_configuration(compose("config"))
    return {cell: defaults | _changes(paper, cell) for cell in cells}


def model_options(paper: Paper, name: str) -> dict[str, Any]:
    """Return the options of a network, by the paper's name."""
    entry = listed("model", name, paper.models)
    return merged(_read("model", entry["configuration"]), entry.get("set", {}))


def system_options(paper: Paper, name: str) -> dict[str, Any]:
    """Return what a system sets, by the paper's name: its strategy's options, and those of the step that it states."""
    system = listed("system", name, paper.systems)
    own = {key: system[key] for key in ("budget", "micro_batch", "exchange", "precision") if key in system}
    if "optimizer" in system:
        own["optimizer"] = _read("optimizer", system["optimizer"]["name"]) | system["optimizer"]
    return {"strategy": _read("strategy", system["strategy"]) | system.get("set", {}), **own}


def device_options(paper: Paper, name: str) -> dict[str, Any]:
    """Return the options of a device, of its cluster and, where stated, of its machine, by the paper's name."""
    device = _read("device", listed("device", name, paper.devices))
    machine = {"machine": _read("machine", paper.machines[name])} if name in paper.machines else {}
    return {"device": device, "cluster": _read("cluster", paper.clusters.get(name, "one")), **machine}


def _changes(paper: Paper, cell: PaperCell) -> dict[str, Any]:
    model, system = model_options(paper, cell.model), system_options(paper, cell.system)
    device, entry = device_options(paper, cell.device), paper.systems[cell.system]
    framework = framework_of(paper.models[cell.model], entry)
    changes = {
        "model": model,
        "batch_size": model["batch_size"] if cell.batch_size is None else cell.batch_size,
        **system,
        "framework": _read("framework", framework),
        **device,
        "cluster": device["cluster"] | entry.get("cluster", {}),
        "metrics": paper.step_metrics or None,
    }
    if cell.budget:
        changes["budget"] = cell.budget
    words = {"model": cell.model, "system": cell.system, "device": cell.device, "framework": framework}
    for change in paper.cell_changes:
        if change.matches(words):
            changes = merged(changes, change.set)
    return changes
