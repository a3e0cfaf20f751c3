"""Hash of the sources that decide a cell's result: where it differs, a stored result is stale.

These are the modules that run a cell and those that its configuration names, with all modules that they import,
directly or not, by their import statements; installed packages count by torch's version.
"""

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

from membench.core.errors import MembenchError
from membench.core.files import shown

_RUNS_CELLS = "membench.sweep.cells.run"
_OWN = __name__.partition(".")[0]
_STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, those of an environment that another one builds on included."""
_PARSING = Lock()
"""Python 3.11's parser counts its depth for all threads together, and fails where two parse at once."""


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


@cache
def module_of(name: str) -> tuple[str, Path] | None:
    """Return the module that a dotted name refers to or lies in, and its file; None if it is installed or missing."""
    root, *inner = name.split(".")
    spec = importlib.util.find_spec(root)
    if spec is None:
        return None
    file = Path(spec.origin) if spec.origin and spec.has_location else None
    folder = Path(next(iter(spec.submodule_search_locations))) if spec.submodule_search_locations else None
    parts = {part for path in (file, folder) if path for part in path.parts}
    is_installed = (file and file.is_relative_to(_STANDARD_LIBRARY)) or _INSTALLED & parts
    if is_installed and root != _OWN:
        return None
    module = root
    for part in inner:
        inside = folder / part if folder else None
        if inside and inside.is_dir():  # a folder without __init__.py has modules too
            folder = inside
            file = inside / "__init__.py" if (inside / "__init__.py").exists() else None
        elif inside and inside.with_suffix(".py").exists():
            folder, file = None, inside.with_suffix(".py")
        else:
            break
        module = f"{module}.{part}"
    return (module, file) if file else None


@cache
def read_module(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return a file's digest and the dotted names that it imports.

    Raises:
        MembenchError: the file is not Python.
    """
    content = path.read_bytes()
    names: list[str] = []
    try:
        with _PARSING:
            tree = ast.parse(content)
    except SyntaxError as error:
        raise MembenchError(f"{shown(path)}, line {error.lineno}: {error.msg}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return hashlib.sha256(content).hexdigest(), tuple(names)
