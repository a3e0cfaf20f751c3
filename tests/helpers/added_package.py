"""A package that adds to membench, as its installation leaves it."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from membench.core.packages import added_packages


@contextmanager
def added(folder: Path, package: str, files: Mapping[str, str]) -> Iterator[None]:
    """Install a package into a folder, which is removed from the path afterwards.

    Args:
        files: texts by path in the package.
    """
    for name, text in {"__init__.py": "", **files}.items():
        path = folder / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    facts = folder / f"{package}-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    (facts / "entry_points.txt").write_text(f"[membench]\n{package} = {package}\n")
    with patch("sys.path", [str(folder), *sys.path]):
        added_packages.cache_clear()
        yield
    added_packages.cache_clear()
