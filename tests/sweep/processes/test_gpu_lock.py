import multiprocessing
import os
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
