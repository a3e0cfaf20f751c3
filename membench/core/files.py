"""The folder for caches; writes of files as a whole; paths and I/O errors formatted for the terminal."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

NO_ROOM = frozenset({EDQUOT, EFBIG, ENOSPC})
"""Errors of a disk, a quota or a limit on files that leaves no room."""


def cache_directory() -> Path:
    """Return ``$MEMBENCH_CACHE``, or ``~/.cache/membench``."""
    return Path(os.environ.get("MEMBENCH_CACHE") or Path.home() / ".cache" / "membench")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an `OSError` the path of the file that could not be written; a full disk's has none.

    Raises:
        OSError: with that path.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file by atomic replacement, so that readers, also after a crash, never see a part of it.

    Raises:
        OSError: it cannot be written; contains its path, and no partial file is left.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path):
        try:
            temporary.write_bytes(content if isinstance(content, bytes) else content.encode())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


def append_line(path: Path, line: str) -> None:
    """Append a line to a file as a whole, after those that other processes append at the same time.

    After a last line that was cut off, it is a line of its own.

    Raises:
        OSError: it cannot be written; contains the path, and no part of the line is left.
    """
    with naming(path), path.open("a+b", buffering=0) as file:
        before_bytes, left = file.seek(0, os.SEEK_END), f"{line}\n".encode()
        if before_bytes and os.pread(file.fileno(), 1, before_bytes - 1) != b"\n":
            left = b"\n" + left
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(before_bytes)
            raise


def shown(path: Path) -> str:
    """Return a path relative to the working directory if it lies below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def complaint(error: Exception) -> str:
    """Return an error's message; for a file or folder that cannot be used with its path and a remedy."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        where = error.filename or "what is printed, or a temporary file"
        return f"{where}: {error.strerror}; make room there, or name another place"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}; name a place that can be read and written"
    return str(error)
