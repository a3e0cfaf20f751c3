"""Captured updates by other packages' optimizers: bitsandbytes and torchao."""

from math import prod

import pytest
from torch import float32

from membench.capture.update.captured_update import CapturedUpdate
from membench.core import configuration
from membench.core.graph.call import Value
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.optimizer import Update

SHAPES = [(512, 300), (64, 100), (100,)]
ELEMENTS = [prod(shape) for shape in SHAPES]
TABLE_BYTES = 256 * 4
"""The values of a code of 8 bits."""


def update_by(name: str) -> Update:
    gradients = [(f"w{i}", Value(i, float32, shape, (*shape[1:], 1), 0)) for i, shape in enumerate(SHAPES)]
    graph = TaskGraph("toy", 1, (), (), (), gradients=tuple(gradients))
    return CapturedUpdate(configuration.load("optimizer", name))(graph)


def bytes_of(update: Update) -> list[int]:
    return [sum(states.values()) for states in update.states.values()]


def test_states_of_8_bits_have_a_scale_for_each_block() -> None:
    pytest.importorskip("bitsandbytes")
    update = update_by("adamw8bit")
    large, middle, small = ELEMENTS
    assert bytes_of(update) == [2 * (large + 4 * large // 256 + TABLE_BYTES), 2 * (middle + 4 * 25), 2 * 4 * small]
    assert [task.weights for task in update.tasks] == [("w0",), ("w1",), ("w2",)]
    assert not any(task.workspace_bytes or task.host_bytes for task in update.tasks)


def test_paged_states_are_host_memory() -> None:
    pytest.importorskip("bitsandbytes")
    large, middle, small = ELEMENTS
    update = update_by("paged_adamw")
    assert [task.host_bytes for task in update.tasks] == [2 * 4 * large, 0, 0]  # small ones are not paged
    assert bytes_of(update) == [0, 2 * 4 * middle, 2 * 4 * small]
    assert [task.host_bytes for task in update_by("paged_adamw8bit").tasks] == [2 * large, 0, 0]


def test_lion_has_one_state() -> None:
    pytest.importorskip("bitsandbytes")
    update = update_by("lion")
    assert bytes_of(update) == [4 * each for each in ELEMENTS]
    assert not any(task.workspace_bytes for task in update.tasks)


@pytest.mark.parametrize(
    ("name", "block", "table_bytes", "bits"),
    [
        ("torchao_adamw8bit", 256, TABLE_BYTES, 8),
        ("torchao_adamw4bit", 128, 16 * 4, 4),
        ("torchao_adamw_fp8", 256, 0, 8),
    ],
)
def test_what_torchao_compiles_is_one_kernel(name: str, block: int, table_bytes: int, bits: int) -> None:
    pytest.importorskip("torchao")
    update = update_by(name)
    large, middle, small = ELEMENTS
    codes = [each * bits // 8 + 4 * each // block + table_bytes for each in (large, middle)]
    assert bytes_of(update) == [2 * each for each in (*codes, 4 * small)]
    assert [task.launches for task in update.tasks] == [1, 1, 1]
    assert not any(task.workspace_bytes for task in update.tasks)
