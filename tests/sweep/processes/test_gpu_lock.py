import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import pytest

from membench.profiling.nvml import Gpu
from membench.sweep.processes.gpu_lock import free_gpu

ONE, OTHER = Gpu("GPU-1", "a card"), Gpu("GPU-2", "a card")


def _hold_and_die(directory: Path, gpus: list[Gpu]) -> None:
    with free_gpu(gpus, directory):
        os._exit(0)


def test_two_cells_never_hold_one_gpu(tmp_path: Path) -> None:
    is_held, overlaps = threading.Event(), []

    def measure() -> None:
        for _ in range(3):
            with free_gpu([ONE], tmp_path):
                overlaps.append(is_held.is_set())
                is_held.set()
                time.sleep(0.005)
                is_held.clear()

    threads = [threading.Thread(target=measure) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [False] * 12


def test_a_second_process_takes_another_gpu(tmp_path: Path) -> None:
    with free_gpu([ONE, OTHER], tmp_path) as first, free_gpu([ONE, OTHER], tmp_path) as second:
        assert first == {"CUDA_VISIBLE_DEVICES": "GPU-1"}
        assert second == {"CUDA_VISIBLE_DEVICES": "GPU-2"}
    with free_gpu([ONE, OTHER], tmp_path) as again:
        assert again == first


def test_the_lock_ends_with_its_process(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_hold_and_die, args=(tmp_path, [ONE]))
    process.start()
    process.join()
    with free_gpu([ONE], tmp_path) as held:
        assert held


def test_without_a_list_of_gpus_there_is_one_lock_and_no_choice(tmp_path: Path) -> None:
    with free_gpu([], tmp_path) as environment:
        assert environment == {}
    assert [path.name for path in tmp_path.iterdir()] == ["membench-gpu.lock"]


def test_an_error_while_the_lock_is_held_is_raised(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="of the cell's own"), free_gpu([ONE, OTHER], tmp_path):
        raise BlockingIOError("of the cell's own")
    with free_gpu([ONE], tmp_path) as again:
        assert again


def _can_lock(directory: Path) -> None:
    os.setuid(65534)
    with free_gpu([ONE], directory) as held:
        os._exit(0 if held else 1)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o777])
def test_another_user_can_use_the_lock_that_the_first_one_made(umask: int) -> None:
    directory = Path(tempfile.mkdtemp())  # the folders of pytest are its user's alone
    directory.chmod(0o1777)
    before = os.umask(umask)
    try:
        with free_gpu([ONE], directory):
            pass
    finally:
        os.umask(before)
    process = multiprocessing.get_context("fork").Process(target=_can_lock, args=(directory,))
    process.start()
    process.join()
    shutil.rmtree(directory)
    assert process.exitcode == 0


def test_the_lock_needs_no_right_to_write(tmp_path: Path) -> None:
    with free_gpu([ONE], tmp_path):
        pass
    [lock] = tmp_path.iterdir()
    assert lock.stat().st_mode & 0o777 == 0o444
    with free_gpu([ONE], tmp_path) as held:
        assert held


def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "membench-GPU-1.lock").symlink_to(other := tmp_path / "of_another_user")
    with pytest.raises(OSError, match="membench-GPU-1.lock"), free_gpu([ONE], tmp_path):
        pass
    assert not other.exists()
