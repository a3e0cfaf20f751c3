"""Hydra's part outside the command line: names and overrides in, resolved configurations out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from membench.core import configuration
from membench.core.record import Configuration
from membench.papers.experiment import Cell, Paper, framework_of, listed

CELL_KEYS = (
    "model",
    "batch_size",
    "strategy",
    "study",
    "framework",
    "device",
    "cluster",
    "backend",
    "seed",
    "budget",
    "micro_batch",
    "exchange",
)


@contextmanager
def hydra_composition() -> Iterator[None]:
    """Make `compose` read `conf/`."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(configuration.CONF_DIRECTORY), version_base="1.3"):
        yield


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return a composed configuration as plain values, what stands for another option replaced by that one."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def cell_configuration(config: DictConfig) -> Configuration:
    """Return what of a composed configuration describes the run itself; few have a study.

    A step that runs is PyTorch's and on this machine, whatever a simulation of it would take for framework and devices.
    """
    values = resolved(config)
    cell = {key: values[key] for key in CELL_KEYS if key in values}
    if cell["backend"]["name"] == "simulated":
        return cell
    return cell | {"framework": configuration.read("framework", "pytorch"), "device": None, "cluster": None}


def compose_cells(paper: Paper, cells: Sequence[Cell]) -> dict[Cell, Configuration]:
    """Return each cell's configuration, equal to Hydra's own composition, which takes a quarter of a second each.

    One whose batch size is to be found keeps ``largest`` in its place.

    Raises:
        MembenchError: the paper's vocabulary does not have a name of a cell.
    """
    with hydra_composition():
        defaults = cell_configuration(compose("config"))
    read = cache(configuration.read)
    return {cell: defaults | _changes(paper, cell, read) for cell in cells}


def _changes(paper: Paper, cell: Cell, read: Callable[[str, str], dict[str, Any]]) -> dict[str, Any]:
    system = listed("system", cell.system, paper.systems)
    model = read("model", listed("model", cell.model, paper.models)["configuration"])
    changes = {
        "model": model,
        "batch_size": model["batch_size"] if cell.batch_size is None else cell.batch_size,
        "strategy": read("strategy", system["strategy"]),
        **({"study": read("study", system["study"])} if "study" in system else {}),
        "framework": read("framework", framework_of(paper.models[cell.model], system)),
        "device": read("device", listed("device", cell.device, paper.devices)),
        "cluster": read("cluster", paper.clusters.get(cell.device, "one")) | system.get("cluster", {}),
        "budget": _budget(cell, system),
        "micro_batch": system.get("micro_batch"),
        **({"exchange": system["exchange"]} if "exchange" in system else {}),
    }
    group = _set_group(system)
    changes[group] = changes[group] | system.get("set", {})
    return changes


def overrides(paper: Paper, cell: Cell) -> list[str]:
    """Return the words that run a cell on the command line."""
    system = paper.systems[cell.system]
    words = [
        f"model={paper.models[cell.model]['configuration']}",
        f"strategy={system['strategy']}",
        *([f"study={system['study']}"] if "study" in system else []),
        f"framework={framework_of(paper.models[cell.model], system)}",
        f"device={paper.devices[cell.device]}",
        *([f"cluster={paper.clusters[cell.device]}"] if cell.device in paper.clusters else []),
        *(f"cluster.{option}={value}" for option, value in system.get("cluster", {}).items()),
        *([f"budget='{budget}'"] if (budget := _budget(cell, system)) else []),
        *([f"{key}={system[key]}" for key in ("micro_batch", "exchange") if key in system]),
        *(f"{_set_group(system)}.{option}={value}" for option, value in system.get("set", {}).items()),
    ]
    return words if cell.batch_size is None else [*words, f"batch_size={cell.batch_size}"]


def _set_group(system: Mapping[str, Any]) -> str:
    """Return whose options a system sets: its strategy's, or those of what is done instead of a step."""
    return "study" if "study" in system else "strategy"


def _budget(cell: Cell, system: Mapping[str, Any]) -> str | None:
    return cell.budget or system.get("budget")
