"""The folder for caches; writes of files as a whole; paths and I/O errors formatted for the terminal."""

import os
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

NO_ROOM = frozenset({EDQUOT, EFBIG, ENOSPC})
"""Errors of a disk, a quota or a limit on files that leaves no room."""


def cache_directory() -> Path:
    """Return ``$MEMBENCH_CACHE``, or ``~/.cache/membench``."""
    return Path(os.environ.get("MEMBENCH_CACHE") or Path.home() / ".cache" / "membench")


def write_whole(path: Path, text: str) -> None:
    """Write a file by atomic replacement, so that readers, also after a crash, never see a part of it.

    Raises:
        OSError: it cannot be written; contains its path, and no partial file is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def append_line(path: Path, line: str) -> None:
    """Append a line to a file as a whole, after those that other processes append at the same time.

    Raises:
        OSError: it cannot be written; contains the path, and no part of the line is left.
    """
    with path.open("ab", buffering=0) as file:
        before_bytes, left = file.seek(0, os.SEEK_END), f"{line}\n".encode()
        try:
            while left:
                left = left[file.write(left) :]
        except OSError as error:
            file.truncate(before_bytes)
            raise OSError(error.errno, error.strerror, str(path)) from error


def shown(path: Path) -> str:
    """Return a path relative to the working directory if it lies below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def complaint(error: Exception) -> str:
    """Return an error's message; for a file or folder that cannot be used with its path and a remedy."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"{error.filename or 'a file'}: {error.strerror}; make room there, or name another place"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; name a place that can be read and written"
    return str(error)
