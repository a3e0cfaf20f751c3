"""Hash of the sources that decide a cell's result: where it differs, a stored result is stale.

These are membench's own, without the packages that only present or train, and those of each class that the configuration names:
all files of its package or, for a module outside a package, of its folder. Installed packages count by torch's version.
"""

import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_OWN = Path(__file__).parent.parent
_UNRELATED = ("pictures", "training", "papers", "cli")
"""Packages that decide no number of a record, except for `membench.papers.metrics`."""
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of installed packages, those of an environment that another one builds on included."""


def sources_hash(configuration: Any) -> str:
    """Return a short hash of the sources that decide the result of this configuration."""
    roots = {name.partition(".")[0] for name in _targets(configuration)} | {_OWN.name}
    text = "\n".join([version("torch"), *map(_digest, sorted(roots))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _targets(configuration: Any) -> Iterator[str]:
    """Yield the dotted names of classes (``_target_``) and of the function of a paper's numbers (``metrics``)."""
    for key, value in configuration.items() if isinstance(configuration, dict) else enumerate(configuration):
        if isinstance(value, dict | list):
            yield from _targets(value)
        elif key in ("_target_", "metrics") and isinstance(value, str):
            yield value


@cache
def _digest(root: str) -> str:
    lines = (f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in sorted(_files(root)))
    return hashlib.sha256("\n".join([root, *lines]).encode()).hexdigest()


def _files(root: str) -> Iterable[Path]:
    """Return the files with a package's sources, or those next to a module; none if it is missing or installed."""
    if root == _OWN.name:
        shared = (
            path for path in _OWN.glob("*/**/*.py") if path.relative_to(_OWN).parts[0] not in _UNRELATED
        )
        return (*shared, *_OWN.glob("papers/metrics/*.py"))
    spec = find_spec(root)
    if spec is None or not spec.origin or not spec.has_location:
        return ()
    path = Path(spec.origin)
    if _INSTALLED & set(path.parts):
        return ()
    return path.parent.rglob("*.py") if path.name == "__init__.py" else path.parent.glob("*.py")
