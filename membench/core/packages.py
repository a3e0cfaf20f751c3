"""Installed packages that add to membench: strategies, models, devices and other files of `conf`, rows, and papers.

A package names itself by an entry point of the group `membench` in its pyproject.toml::

    [project.entry-points.membench]
    my_methods = "my_methods"

Files in its folder ``conf/`` add to those of membench, and need no list: ``my_methods/conf/strategy/mine.yaml`` makes
``strategy=mine``, as ``my_methods/experiments/my_paper/paper.yaml`` makes ``membench reproduce my_paper``. The package
is not imported until something of it is used.
"""

from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from membench.core.errors import MembenchError

GROUP = "membench"


@cache
def added_packages() -> dict[str, Path]:
    """Return the folder of each installed package that adds to membench, by the package's name, sorted.

    Raises:
        MembenchError: one of them names a package that is not there.
    """
    return {entry.value: folder_of(entry.value) for entry in sorted(entry_points(group=GROUP), key=lambda e: e.value)}


def folder_of(package: str) -> Path:
    """Return the folder of a package, which is not imported.

    Raises:
        MembenchError: it is not installed, or is a module without a folder.
    """
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    if not locations:
        raise MembenchError(
            f"there is no package {package!r} to be imported; install it, or correct the entry point {GROUP!r} that "
            "names it"
        )
    return Path(locations[0])


def added_folders(name: Literal["conf", "experiments"]) -> list[Path]:
    """Return the folders of added packages that are laid out as the repository's of this name."""
    return [folder for package in added_packages().values() if (folder := package / name).is_dir()]
