"""Files: written whole or not at all; their paths, and what goes wrong with them, as people write it."""

import os
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

_NO_ROOM = {EDQUOT, EFBIG, ENOSPC}


def write_whole(path: Path, text: str) -> None:
    """Write a file by atomic replacement: who reads it, or finds it after a crash, finds all of it.

    Raises:
        OSError: it cannot be written; names it, and nothing of it is left.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def shown(path: Path) -> str:
    """Return a path as a person on this command line would write it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def complaint(error: Exception) -> str:
    """Return an error for its user: of a file or folder that cannot be used, which it is and what to do."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return f"{error.filename or 'a file'}: {error.strerror}; make room there, or name another place"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; name a place that can be read and written"
    return str(error)
