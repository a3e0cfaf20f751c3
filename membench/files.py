"""Files: written whole or not at all; their paths, and what goes wrong with them, as people write it."""

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


def complaint(error: Exception) -> str:
    """Return an error for its user: of a file or folder that cannot be used, which it is and what to do."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; name a place that can be read and written"
    return str(error)
