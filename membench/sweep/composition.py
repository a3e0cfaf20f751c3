"""Configurations of cells, composed by Hydra."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from membench.core import configuration
from membench.core.packages import added_folders
from membench.core.record import Configuration, is_simulated
from membench.sweep import model_source  # noqa: F401 (registers the source that conf/config.yaml names)

CELL_KEYS = (
    "model", "batch_size", "strategy", "framework", "device", "cluster", "backend", "seed", "budget",
    "micro_batch", "exchange", "metrics",
)  # fmt: skip


_OF_SWEEPS = (
    "paper", "tracking", "timeout_s", "records", "time_limit_s", "rerun", "dry_run", "strict", "objective", "output",
)  # fmt: skip
"""Options of how cells are run. All others are of the step, and left out of its configuration where they are null, so
that an option that comes later leaves the hashes of earlier records as they are."""


class AddedConfigurations(SearchPathPlugin):
    """Adds the files of added packages to those that Hydra composes from, by whichever command."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in added_folders("conf"):
            search_path.append("membench", f"file://{folder}")


Plugins.instance().register(AddedConfigurations)


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
    """Return a composed configuration as plain values, references to other options resolved.

    A batch size may have a name among the ``batch_sizes`` that the file of a model adds.
    """
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    found = {str(key): value for key, value in values.items()}
    if named := found.pop("batch_sizes", None):
        found["batch_size"] = named.get(found["batch_size"], found["batch_size"])
    return found


def cell_configuration(config: DictConfig) -> Configuration:
    """Return the part of a composed configuration that describes the run itself.

    A step that is run is PyTorch's and on this machine: framework, devices and machine of a simulation do not apply.
    """
    values = resolved(config)
    cell = {key: values[key] for key in CELL_KEYS}
    later = values.keys() - {*CELL_KEYS, *_OF_SWEEPS}
    cell |= {key: values[key] for key in sorted(later) if values[key] is not None}
    if is_simulated(cell):
        return cell
    cell.pop("machine", None)
    return cell | {"framework": configuration.read("framework", "pytorch"), "device": None, "cluster": None}
