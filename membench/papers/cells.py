"""Configurations of cells, composed by Hydra or from a paper's words."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from membench.core import configuration
from membench.core.record import Configuration, is_simulated
from membench.papers import model_source  # noqa: F401 (registers the source that conf/config.yaml names)
from membench.papers.experiment import Paper, PaperCell, framework_of, listed
from membench.papers.loader import merged

CELL_KEYS = (
    "model", "batch_size", "strategy", "framework", "device", "cluster", "backend", "seed", "budget",
    "micro_batch", "exchange", "metrics",
)  # fmt: skip
OPTIONAL_KEYS = (
    "optimizer",
    "precision",
    "channels_last",
    "serving",
    "allocator",
    "machine",
    "host_memory",
    "parallel",
    "kernels",
)
"""Later keys, left out of a configuration where they are null, so that the hashes of earlier records stay."""


@contextmanager
def hydra_composition(own: Path | None = None) -> Iterator[None]:
    """Make `compose` read `conf/`.

    Args:
        own: a folder that adds to it, as Hydra's ``--config-dir`` does; absolute.
    """
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(configuration.CONF_DIRECTORY), version_base="1.3"):
        if own:  # Hydra has this for its own command line alone
            search_path = GlobalHydra.instance().config_loader().get_search_path()
            search_path.prepend("command-line", f"file://{own}", SearchPathQuery(provider="schema"))
            GlobalHydra.instance().clear()
            Hydra.create_main_hydra2("app", search_path)
        yield


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain values, references to other options resolved."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def cell_configuration(config: DictConfig) -> Configuration:
    """Return the part of a composed configuration that describes the run itself.

    A step that is run is PyTorch's and on this machine: framework, devices and machine of a simulation do not apply.
    """
    values = resolved(config)
    cell = {key: values[key] for key in CELL_KEYS}
    cell |= {key: values[key] for key in OPTIONAL_KEYS if values.get(key) is not None}
    if is_simulated(cell):
        return cell
    cell.pop("machine", None)
    return cell | {"framework": configuration.read("framework", "pytorch"), "device": None, "cluster": None}


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
