"""Hydra's part outside the command line: names and overrides in, resolved configurations out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from membench.configuration import CONF_DIRECTORY
from membench.experiment import Cell, Paper

CELL_KEYS = ("model", "batch_size", "strategy", "framework", "device", "backend", "seed", "budget")


@contextmanager
def hydra_composition() -> Iterator[None]:
    """Make `compose` read `conf/`."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str(CONF_DIRECTORY), version_base="1.3"):
        yield


def cell_configuration(config: DictConfig) -> dict[str, Any]:
    """Return what of a composed configuration describes the run itself, resolved, as plain values."""
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    return {key: resolved[key] for key in CELL_KEYS}


def compose_cells(paper: Paper, cells: Sequence[Cell]) -> dict[Cell, dict[str, Any]]:
    """Return each cell's configuration; one whose batch size is to be found keeps ``largest`` in its place."""
    with hydra_composition():
        return {cell: cell_configuration(compose("config", _overrides(paper, cell))) for cell in cells}


def _overrides(paper: Paper, cell: Cell) -> list[str]:
    system = paper.systems[cell.system]
    overrides = [
        f"model={paper.models[cell.model]['configuration']}",
        f"strategy={system['strategy']}",
        f"framework={system['framework']}",
        f"device={paper.devices[cell.device]}",
        *(f"strategy.{option}={value}" for option, value in system.get("set", {}).items()),
    ]
    if cell.batch_size is not None:
        overrides.append(f"batch_size={cell.batch_size}")
    return overrides
