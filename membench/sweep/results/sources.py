"""Hash of the sources that decide a cell's result: where it differs, a stored result is stale.

These are the modules that run a cell and those that its configuration names, with all modules that they import,
directly or not. Installed packages count by torch's version, but for those that add to membench. Imports are found in
the text, since parsing two hundred files takes a second: whatever reads as one counts, also in a docstring.
"""

import hashlib
import importlib.util
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from membench.core.packages import added_packages

_RUNS_CELLS = "membench.sweep.cells.run"
_OWN = __name__.partition(".")[0]
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, those of an environment that another one builds on included."""
_IMPORT = re.compile(r"import\b(?=[ \t]*(\((?:[^()#]|#.*)*\)|[^\n#;]*))")
"""An import's names, in parentheses with comments or not."""
_FROM = re.compile(r"\bfrom[ \t]+([\w.]+)[ \t]*$")
_NAME = re.compile(r"#.*|\bas\s+\w+|([\w.]+)")
"""A name that is imported, or what is not one: a comment, or what the statement calls it."""


def sources_hash(configuration: Any) -> str:
    """Return a short hash of the sources that decide the result of this configuration."""
    return hash_of(frozenset(_targets(configuration)))


def _targets(configuration: Any) -> Iterator[str]:
    """Yield the dotted names of classes (``_target_``) and of the function of a paper's numbers (``metrics``)."""
    if isinstance(configuration, dict):
        for key, value in configuration.items():
            is_name = key in ("_target_", "metrics") and isinstance(value, str)
            yield from [value] if is_name else _targets(value)
    elif isinstance(configuration, list):
        for value in configuration:
            yield from _targets(value)


@cache
def hash_of(targets: frozenset[str]) -> str:
    """Return the hash of what runs a cell with these classes and functions."""
    found: dict[str, str] = {}
    waiting = [_RUNS_CELLS, *targets]
    while waiting:
        module = module_of(waiting.pop())
        if module is not None and module[0] not in found:
            name, path = module
            found[name], imports = read_module(path)
            waiting += imports
    text = "\n".join([version("torch"), *(f"{name} {digest}" for name, digest in sorted(found.items()))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def module_of(name: str) -> tuple[str, Path] | None:
    """Return the module that a dotted name refers to or lies in, and its file; None if it is installed or missing."""
    place = _place(name)
    return (place.module, place.file) if place and place.file else None


class _Place(NamedTuple):
    """A module or a folder of modules, with the file that runs and the folder of what is inside, if there are any."""

    module: str
    file: Path | None
    folder: Path | None


@cache
def _place(name: str) -> _Place | None:
    around, _, part = name.rpartition(".")
    if not around:
        return _root(name)
    place = _place(around)
    if place is None or place.folder is None:
        return place
    module, inside = f"{place.module}.{part}", place.folder / part
    if inside.is_dir():  # a folder without __init__.py has modules too
        file = inside / "__init__.py"
        return _Place(module, file if file.exists() else None, inside)
    file = inside.with_suffix(".py")
    return _Place(module, file, None) if file.exists() else place._replace(folder=None)


def _root(name: str) -> _Place | None:
    """Return a module that lies in no other; None if it is installed or missing."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # the program that runs has a module without a spec
        spec = None
    if spec is None:
        return None
    file = Path(spec.origin) if spec.origin and spec.has_location else None
    folder = Path(next(iter(spec.submodule_search_locations))) if spec.submodule_search_locations else None
    parts = {part for path in (file, folder) if path for part in path.parts}
    is_installed = (file and file.is_relative_to(_STANDARD_LIBRARY)) or _INSTALLED & parts
    return None if is_installed and name not in (_OWN, *added_packages()) else _Place(name, file, folder)


@cache
def read_module(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return a file's digest and the dotted names that it imports."""
    content = path.read_bytes()
    text = content.decode(errors="replace").replace("\r\n", "\n").replace("\\\n", " ")
    names: list[str] = []
    for statement in _IMPORT.finditer(text):
        start = statement.start()
        module = _FROM.search(text, text.rfind("\n", 0, start) + 1, start)
        prefix = f"{module[1]}." if module else ""
        names += [f"{prefix}{name}" for name in _NAME.findall(statement[1]) if name]
    absolute = tuple(name for name in names if not name.startswith("."))
    return hashlib.sha256(content).hexdigest(), absolute
