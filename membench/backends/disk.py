"""Blocks in a file: the disk as a tier behind host memory.

    make            look for room; a file without a name in the folder, with its space
    write(block)    host memory -> the spare place of the block's size, whole; the block's former place becomes
                    the spare one
    read(block)     the block's place -> host memory

So a write that fails, at any byte, leaves the copy before it whole, at the cost of one spare place for each size of
block: a network has few. Space is taken when the file is made: a disk that is too small is found before the first step.

Requests bypass the page cache (`O_DIRECT`), which would hold each block in host memory a second time. They go from and
to the caller's memory without a copy where that is page-aligned (see `membench.backends.pages`), otherwise, and for the
last part of a page, through a buffer. Where the file system refuses direct requests they are buffered, and a write ends
when the data is on the disk, as a direct one does.

The file vanishes with its process, however that ends: it is memory, not a checkpoint.
"""

import os
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from errno import EINVAL
from fcntl import F_GETFL, F_SETFL, fcntl
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import NoReturn

from torch import Tensor

from membench.backends.pages import pages
from membench.core.errors import DiskFailed
from membench.core.files import NO_ROOM
from membench.core.graph.task_graph import Block
from membench.core.units import format_bytes
from membench.planning.host_memory.host_places import PAGE_BYTES, in_pages

_PART_BYTES = 8 * 2**20
"""Of a copy through the buffer."""

_MOST_BYTES = 2**30
"""Of one request: Linux moves at most 2**31 bytes less a page."""

_MAKE_ROOM = "make room there, or name a folder on another disk"


class DiskStore:
    """Copies of blocks in one file of a folder.

    A read and a write may run at the same time, in two threads, but not on the same block.

    Args:
        folder: on the disk in question.
        blocks: all blocks that will be written.

    Attributes:
        size_bytes: the file's size.
        is_direct: whether requests bypass the page cache; otherwise the file system refuses that.

    Raises:
        DiskFailed: the folder has less room than the blocks need, or no file can be made there.
    """

    def __init__(self, folder: Path, blocks: Iterable[Block]) -> None:
        self._folder = folder
        self._blocks = {block.index: block for block in blocks}
        self._place: dict[int, int] = {}  # offset of each block's last whole copy
        self._free: defaultdict[int, list[int]] = defaultdict(list)  # by size, offsets of places without a copy
        sizes_bytes = [in_pages(block.size_bytes) for block in self._blocks.values()]
        self.size_bytes = 0
        for size_bytes in (*sizes_bytes, *dict.fromkeys(sizes_bytes)):
            self._free[size_bytes].append(self.size_bytes)
            self.size_bytes += size_bytes
        self._file = self._make_file()
        self._closed = weakref.finalize(self, self._file.close)
        self._read_buffer, self._write_buffer = pages(_PART_BYTES), pages(_PART_BYTES)
        self._reading, self._writing = Lock(), Lock()
        self.is_direct = self._bypass_cache()

    def __contains__(self, block: int) -> bool:
        """Return whether a block has been written."""
        return block in self._place

    def write(self, block: int, memory: Tensor) -> None:
        """Replace a block's copy; until this has ended, and if it fails, the former one stays.

        Args:
            memory: the block's bytes, in host memory.

        Raises:
            DiskFailed: the disk is full or broken.
        """
        with self._writing:
            places = self._free[in_pages(self._blocks[block].size_bytes)]
            place = places[-1]
            try:
                self._transfer(memory, place, writes=True)
                if not self.is_direct:
                    os.fdatasync(self._file.fileno())
            except OSError as error:
                self._fail(f"write {self._blocks[block].name!r}", error)
            places.pop()
            if block in self._place:
                places.append(self._place[block])
            self._place[block] = place

    def read(self, block: int, memory: Tensor) -> None:
        """Fill host memory with a block's last copy.

        Raises:
            DiskFailed: the disk is broken.
        """
        with self._reading:
            try:
                self._transfer(memory, self._place[block], writes=False)
            except OSError as error:
                self._fail(f"read {self._blocks[block].name!r}", error)

    def close(self) -> None:
        """Remove the file."""
        self._closed()

    def _make_file(self) -> FileIO:
        """Return a file without a name that has its space.

        Raises:
            DiskFailed: see the class.
        """
        file = None
        try:
            self._check_room()
            file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 (closed by `close`)
            if self.size_bytes:
                os.posix_fallocate(file.fileno(), 0, self.size_bytes)  # unaligned on some file systems
        except OSError as error:
            if file is not None:
                file.close()
            self._fail(f"reserve {format_bytes(self.size_bytes)}", error, "name a folder that can be written")
        return file

    def _check_room(self) -> None:
        found = os.statvfs(self._folder)
        free_bytes = found.f_bavail * found.f_frsize
        if free_bytes < self.size_bytes:
            raise DiskFailed(
                f"reserve {format_bytes(self.size_bytes)}",
                self._folder,
                f"{format_bytes(free_bytes)} are free",
                _MAKE_ROOM,
            )

    def _bypass_cache(self) -> bool:
        """Let requests bypass the page cache, and return whether the file system takes such ones."""
        descriptor = self._file.fileno()
        flags = fcntl(descriptor, F_GETFL)
        with suppress(OSError):
            fcntl(descriptor, F_SETFL, flags | os.O_DIRECT)
            if self.size_bytes:  # some accept the flag alone
                os.pwritev(descriptor, [self._write_buffer[:PAGE_BYTES].numpy().data], 0)
            return True
        fcntl(descriptor, F_SETFL, flags)
        return False

    def _transfer(self, memory: Tensor, place: int, *, writes: bool) -> None:
        """Move a block between host memory and its place, what is aligned without a copy."""
        whole_bytes = len(memory) // PAGE_BYTES * PAGE_BYTES if memory.data_ptr() % PAGE_BYTES == 0 else 0
        if whole_bytes:
            self._request(memory[:whole_bytes], place, writes=writes)
        buffer = self._write_buffer if writes else self._read_buffer
        for start in range(whole_bytes, len(memory), _PART_BYTES):
            part = memory[start : start + _PART_BYTES]
            if writes:
                buffer[: len(part)].copy_(part)
            self._request(buffer[: in_pages(len(part))], place + start, writes=writes)
            if not writes:
                part.copy_(buffer[: len(part)])

    def _request(self, memory: Tensor, offset: int, *, writes: bool) -> None:
        view, request = memory.numpy().data, os.pwritev if writes else os.preadv
        done = 0
        while done < len(view):
            moved = request(self._file.fileno(), [view[done : done + _MOST_BYTES]], offset + done)
            if moved == 0:
                raise OSError(EINVAL, f"its file ends after {offset + done:,} bytes")
            done += moved

    def _fail(self, what: str, error: OSError, remedy: str = "name a folder on another disk") -> NoReturn:
        if error.errno in NO_ROOM:
            remedy = _MAKE_ROOM
        raise DiskFailed(what, self._folder, str(error.strerror), remedy) from error
