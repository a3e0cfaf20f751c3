"""Kernels of fused tasks: how many there are, and what each reads and writes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from membench.capture.capture import capture
from membench.core.graph.fused_calls import fused_calls_of
from membench.core.graph.task_graph import Phase, Task
from membench.core.step.workload import Workload
from membench.cost.fused_calls import LONGEST_ROW_BYTES, program_kernels
from membench.cost.kernels import Family, kernels_of, launches
from membench.planning.fusion.graph import fused

ROWS, WIDTH = 64, 32
BYTES = ROWS * WIDTH * 4


class Calls(nn.Module):
    """A function of rows, behind a product whose weight needs a gradient."""

    def __init__(self, function: Callable[[Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.product = nn.Linear(WIDTH, WIDTH, bias=False)
        self.layers = nn.Sequential(*layers)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.function = function

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.last(self.function(self.layers(self.product(rows))))
        return found


def programs(module: nn.Module, phase: Phase, *shape: int) -> list[Task]:
    batch = (torch.randn(*shape or (ROWS, WIDTH)),)
    graph = fused(capture(Workload("net", module, lambda output: output.sum(), batch)).graph)
    return [task for task in graph.tasks if task.phase is phase and fused_calls_of(task.call)]


def test_a_norm_and_what_is_computed_of_its_result_are_one_kernel() -> None:
    module = Calls(lambda rows: functional.gelu(rows) * 2, nn.LayerNorm(WIDTH, bias=False))
    [task] = programs(module, Phase.FORWARD)
    [kernel] = kernels_of(task)
    statistics = 2 * ROWS * 4
    results = kernel.moved_bytes - BYTES - WIDTH * 4 - statistics
    assert results % BYTES == 0 and kernel.family is Family.ELEMENTWISE and launches(task) == 1


def test_a_weights_gradient_of_a_norm_is_a_kernel_that_reads_the_rows_again() -> None:
    tasks = programs(Calls(lambda rows: rows, nn.LayerNorm(WIDTH, bias=False)), Phase.BACKWARD)
    [task] = [task for task in tasks if "native_layer_norm_backward" in str(task.call)]
    kernels = kernels_of(task)
    assert sorted(kernel.family for kernel in kernels) == [Family.ELEMENTWISE, Family.REDUCTION]
    assert all(kernel.moved_bytes >= 2 * BYTES for kernel in kernels)


def test_batch_norm_in_training_reads_its_input_twice_and_in_evaluation_once() -> None:
    norm = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    [task] = programs(norm, Phase.FORWARD, 2, 4, 8, 8)
    image_bytes = 2 * 4 * 8 * 8 * 4
    first, second = kernels_of(task)
    assert first.family is Family.REDUCTION and image_bytes <= first.moved_bytes < 1.5 * image_bytes
    assert 2 * image_bytes <= second.moved_bytes < 2.5 * image_bytes
    workload = Workload("net", norm.eval(), None, (torch.randn(2, 4, 8, 8),))
    graph = fused(capture(workload).graph)
    [once] = [kernel for task in graph.tasks if fused_calls_of(task.call) for kernel in kernels_of(task)]
    assert once.family is Family.ELEMENTWISE and once.moved_bytes < 2.5 * image_bytes


@pytest.mark.parametrize(("columns", "reads"), [(64, 1), (LONGEST_ROW_BYTES, 2)])
def test_long_rows_are_read_again_for_what_their_sums_are_needed_for(columns: int, reads: int) -> None:
    workload = Workload("net", nn.Softmax(-1), None, (torch.empty(8, columns, device="meta"),))
    [task] = fused(capture(workload).graph).tasks
    [kernel] = kernels_of(task)
    assert kernel.moved_bytes == (reads + 1) * 8 * columns * 4


def test_a_loss_keeps_no_logarithms_of_its_classes() -> None:
    classes = 1000
    network = nn.Sequential(nn.Linear(8, classes, bias=False))
    step = Workload("net", network, nn.CrossEntropyLoss(), (torch.randn(16, 8),), (torch.zeros(16).long(),))
    graph = fused(capture(step).graph)
    large = 16 * classes * 4
    kept = [block for task in graph.tasks for block in task.creates if graph.blocks[block].size_bytes == large]
    assert len(kept) == 2  # the classes' numbers, and their gradient
    [loss] = [task for task in graph.tasks if task.phase is Phase.LOSS and fused_calls_of(task.call)]
    program = fused_calls_of(loss.call)
    assert program and max(kernel.moved_bytes for kernel in program_kernels(program)) < 1.1 * large


def test_a_sum_of_a_few_numbers_is_added_up_where_it_is_needed() -> None:
    few, many = (
        Calls(lambda rows, parts=parts: (rows.expand(parts, ROWS, WIDTH) * 2).sum(0).relu()) for parts in (7, 8)
    )
    [task] = programs(few, Phase.FORWARD)
    [kernel] = kernels_of(task)
    assert kernel.family is Family.ELEMENTWISE
    [task] = programs(many, Phase.FORWARD)
    assert [kernel.family for kernel in kernels_of(task)] == [Family.REDUCTION, Family.ELEMENTWISE]


def test_what_is_updated_within_a_program_alone_is_not_written() -> None:
    def function(rows: Tensor) -> Tensor:
        return (rows * 2).add_(rows).relu()

    [task] = programs(Calls(function), Phase.FORWARD)
    [kernel] = kernels_of(task)
    program = fused_calls_of(task.call)
    assert program is not None and any("add_" in call.operator for call in program.calls)
    assert kernel.moved_bytes == 2 * BYTES
