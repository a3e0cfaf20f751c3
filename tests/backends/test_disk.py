"""The store of blocks in a file: contents, room, and the errors of a disk, most of them real ones of a file."""

import fcntl
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EINVAL, EIO, ENOSPC
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from membench.backends.disk import DiskStore
from membench.backends.pages import pages
from membench.core.errors import DiskFailed
from membench.core.graph.task_graph import Block, Role
from membench.planning.host_memory.host_places import PAGE_BYTES, in_pages

SIZES_BYTES = (0, 1, 4095, 4096, 4097, 3 * 4096, 9_000_000, 9_000_000)


def blocks_of(*sizes_bytes: int) -> list[Block]:
    return [
        Block(index, f"state {index}", size_bytes, Role.OPTIMIZER_STATE, 0)
        for index, size_bytes in enumerate(sizes_bytes)
    ]


def memory_of(size_bytes: int, *, aligned: bool) -> Tensor:
    return pages(size_bytes)[:size_bytes] if aligned else pages(size_bytes + 64)[64 : 64 + size_bytes]


def contents(size_bytes: int, seed: int) -> Tensor:
    return (
        torch.frombuffer(bytearray(random.Random(seed).randbytes(size_bytes)), dtype=torch.uint8)
        if size_bytes
        else torch.empty(0, dtype=torch.uint8)
    )


def check_contents(store: DiskStore, expected: dict[int, Tensor], *, aligned: bool) -> None:
    for block, wanted in expected.items():
        memory = memory_of(len(wanted), aligned=aligned)
        store.read(block, memory)
        assert torch.equal(memory, wanted)


@pytest.fixture(params=["direct", "buffered"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiskStore]:
    if request.param == "buffered":
        refuse_direct_requests(monkeypatch)
    made = DiskStore(tmp_path, blocks_of(*SIZES_BYTES))
    yield made
    made.close()


def refuse_direct_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    known = fcntl.fcntl

    def refuse(file: int, command: int, flags: int = 0) -> int:
        if flags & os.O_DIRECT:
            raise OSError(EINVAL, "Invalid argument")
        return known(file, command, flags)

    monkeypatch.setattr("membench.backends.disk.fcntl", refuse)


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, call: str, code: int, after: int) -> Iterator[None]:
    """Let that many requests through, and end the others in the middle, with an error of the disk."""
    real, left = getattr(os, call), [after]

    def request(file: int, views: list[Any], offset: int) -> int:
        left[0] -= 1
        if left[0] >= 0:
            return int(real(file, views, offset))
        real(file, [views[0][: len(views[0]) // 2 // PAGE_BYTES * PAGE_BYTES]], offset)
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, request)
        yield


def test_every_block_reads_as_it_was_last_written(store: DiskStore) -> None:
    rng = random.Random(1)
    expected: dict[int, Tensor] = {}
    for seed in range(40):
        block = rng.randrange(len(SIZES_BYTES))
        memory = memory_of(SIZES_BYTES[block], aligned=rng.random() < 0.5)
        store.write(block, memory.copy_(contents(len(memory), seed)))
        expected[block] = contents(len(memory), seed)
        memory.fill_(0xFF)
    assert len(expected) == len(SIZES_BYTES)
    check_contents(store, expected, aligned=True)
    check_contents(store, expected, aligned=False)


def test_a_read_writes_nothing_behind_the_block(store: DiskStore) -> None:
    store.write(4, contents(4097, 0))
    around = pages(2 * PAGE_BYTES).fill_(7)
    store.read(4, around[:4097])
    assert torch.equal(around[:4097], contents(4097, 0))
    assert bool((around[4097:] == 7).all())


def test_direct_requests_are_used_where_the_file_system_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct_requests(monkeypatch)
    assert not DiskStore(tmp_path, blocks_of(4096)).is_direct
    monkeypatch.undo()
    can = DiskStore(tmp_path, blocks_of(4096)).is_direct
    with failing(monkeypatch, "pwritev", EINVAL, after=0):
        assert not DiskStore(tmp_path, blocks_of(4096)).is_direct  # it takes the flag, and no request
    if not can:
        pytest.skip("the file system of the temporary folder refuses direct requests")


def test_the_file_has_one_spare_place_for_each_size_and_no_name(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, blocks_of(4096, 4000, 8192, 8192))
    assert store.size_bytes == in_pages(1) * (2 + 1) + in_pages(8192) * (2 + 1)
    assert not list(tmp_path.iterdir())
    store.close()


@pytest.mark.parametrize("code", [ENOSPC, EIO])
@pytest.mark.parametrize("block", [4, 6])
def test_a_write_that_fails_leaves_the_last_copy(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, code: int, block: int
) -> None:
    size_bytes = SIZES_BYTES[block]
    expected = {each: contents(SIZES_BYTES[each], each) for each in (block, block - 1)}
    for each, copy in expected.items():
        store.write(each, copy)
    for after in (0, 1):
        with failing(monkeypatch, "pwritev", code, after), pytest.raises(DiskFailed) as found:
            store.write(block, memory_of(size_bytes, aligned=True).copy_(contents(size_bytes, 99)))
        remedy = "make room there, or name a folder" if code == ENOSPC else "name a folder on another disk"
        message = str(found.value)
        assert message.startswith(f"the disk could not write 'state {block}' in {found.value.folder}: ")
        assert f"{os.strerror(code)}; {remedy}" in message
        assert "\n" not in message
        check_contents(store, expected, aligned=True)
    store.write(block, contents(size_bytes, 100))
    check_contents(store, {**expected, block: contents(size_bytes, 100)}, aligned=False)


def test_a_failed_read_names_the_block_and_can_be_tried_again(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(4, contents(4097, 4))
    broken = pytest.raises(DiskFailed, match="could not read 'state 4' in .*: Input/output error; name a folder")
    with failing(monkeypatch, "preadv", EIO, after=1), broken:
        store.read(4, memory_of(4097, aligned=True))
    check_contents(store, {4: contents(4097, 4)}, aligned=True)


def test_a_file_that_was_cut_is_an_error(store: DiskStore) -> None:
    store.write(7, contents(SIZES_BYTES[7], 7))
    os.ftruncate(store._file.fileno(), store.size_bytes - 2 * in_pages(SIZES_BYTES[7]) + PAGE_BYTES)
    with pytest.raises(DiskFailed, match="could not read 'state 7' in .*: its file ends after"):
        store.read(7, memory_of(SIZES_BYTES[7], aligned=True))


def test_a_disk_without_room_is_found_before_anything_is_written(tmp_path: Path) -> None:
    found = os.statvfs(tmp_path)
    with pytest.raises(DiskFailed, match=r"could not reserve .* GB in .*: .* are free; make room there"):
        DiskStore(tmp_path, blocks_of(2 * found.f_bavail * found.f_frsize))


def test_a_limit_on_files_is_found_before_anything_is_written(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(DiskFailed, match=r"could not reserve 4\.0 MB in .*: File too large; make room"):
            DiskStore(tmp_path, blocks_of(2**21))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DiskFailed, match="No such file or directory; name a folder that can be written"):
        DiskStore(tmp_path / "missing", blocks_of(4096))
