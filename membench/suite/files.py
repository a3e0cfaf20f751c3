"""Files: written whole or not at all, and their paths as people write them."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a file by atomic replacement: who reads it, or finds it after a crash, finds all of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def shown(path: Path) -> str:
    """Return a path as a person on this command line would write it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
