"""A paper's vocabulary as files of Hydra's groups: what its networks, methods and devices are on the command line."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from membench.core.files import write_whole
from membench.lab.papers.reading.cells import device_options, model_options, system_options
from membench.lab.papers.reading.experiment import Paper

Names = Mapping[str, Mapping[str, str]]
"""By group, the paper's name by each word that stands for it."""


def names_of(paper: Paper) -> Names:
    """Return what stands for a paper's networks, methods and devices: their own names, and those of files in ``conf/``.

    Of several methods with one strategy, or devices with one file, the first in ``paper.yaml`` has the file's name.
    """
    files = {
        "model": _files(paper.models, "configuration"),
        "strategy": _files(paper.systems, "strategy"),
        "device": dict(paper.devices),
    }
    found = {}
    for group, of_group in files.items():
        first = {file: name for name, file in reversed(of_group.items())}
        own = {name: name for name in of_group}
        found[group] = own | {file: name for file, name in first.items() if file not in own}
    return found


def name_of(names: Mapping[str, str], word: str) -> str | None:
    """Return the paper's name that a word stands for, or None; ``wrn28_10`` is WRN-28-10, whatever its file."""
    spelled = {_letters(name): name for name in names.values()}
    return names.get(word, spelled.get(_letters(word)))


def _files(entries: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, str]:
    """Return the file that each entry names; one without is computed, and not run."""
    return {name: entry[key] for name, entry in entries.items() if key in entry}


def file_of(paper: Paper, name: str) -> str:
    """Return the value of a group's option that chooses a paper's network, method or device."""
    return f"{paper.name}/{name}"


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def write_groups(paper: Paper, folder: Path) -> None:
    """Write a file for each network, method and device of a paper, as ``model/layrub/ResNet-50.yaml``.

    A network's framework counts before a method's, and both before a device's.
    """
    writers: dict[str, Callable[[Paper, str], dict[str, Any]]] = {
        "model": _model,
        "strategy": _method,
        "device": _device,
    }
    for group, names in names_of(paper).items():
        for name in dict.fromkeys(names.values()):
            text = yaml.safe_dump(writers[group](paper, name), sort_keys=False, allow_unicode=True)
            path = folder / group / f"{file_of(paper, name)}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, f"# @package _global_\n{text}")


def _model(paper: Paper, name: str) -> dict[str, Any]:
    entry = paper.models[name]
    sizes = {"batch_sizes": entry["batch_sizes"]} if "batch_sizes" in entry else {}
    return {**_choosing(framework=entry.get("framework")), "model": model_options(paper, name), **sizes}


def _method(paper: Paper, name: str) -> dict[str, Any]:
    entry = paper.systems[name]
    of_cluster = {"cluster": entry["cluster"]} if "cluster" in entry else {}
    return {**_choosing(framework=entry["framework"]), **system_options(paper, name), **of_cluster}


def _device(paper: Paper, name: str) -> dict[str, Any]:
    metrics = {"metrics": paper.step_metrics} if paper.step_metrics else {}
    return {
        **_choosing(cluster=paper.clusters.get(name), machine=paper.machines.get(name)),
        "device": device_options(paper, name)["device"],
        **metrics,
    }


def _choosing(**names: str | None) -> dict[str, Any]:
    """Return the list of defaults by which a file chooses those of other groups, unless the command line does."""
    chosen = [{f"override /{group}@_global_.{group}": name} for group, name in names.items() if name]
    return {"defaults": chosen} if chosen else {}
