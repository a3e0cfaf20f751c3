"""Gradients that fused tasks write over those that they read."""

import torch
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.core.graph.fused_calls import fused_calls_of
from membench.core.graph.task_graph import Phase, Role, Task, TaskGraph
from membench.core.step.workload import Workload
from membench.planning.fusion.graph import fused

IMAGE_BYTES = 2 * 4 * 6 * 6 * 4


class Normalized(nn.Module):
    """Convolutions with batch norm and ReLU; around the second one its input is added."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))

    def forward(self, images: Tensor) -> Tensor:
        first, second, third = (
            nn.Sequential(convolution, norm, nn.ReLU())
            for convolution, norm in zip(self.convolutions, self.norms, strict=True)
        )
        inner = first(images)
        return third(second(inner) + inner)


def graph_of(module: nn.Module, *, on_cpu: bool) -> TaskGraph:
    images = torch.randn(2, 4, 6, 6)
    work = Workload("normalized", module, lambda output: output.square().sum(), (images,))
    return fused(capture(work).graph, on_cpu=on_cpu)


def norms_backward(graph: TaskGraph) -> list[Task]:
    return [task for task in graph.tasks if "native_batch_norm_backward" in task.name]


def images_made(graph: TaskGraph, task: Task) -> list[int]:
    return [block for block in task.creates if graph.blocks[block].size_bytes == IMAGE_BYTES]


def overwritten(task: Task) -> set[int]:
    return set(task.writes) - set(task.creates)


def test_a_gradient_lies_where_the_one_that_it_is_made_from_dies() -> None:
    graph = graph_of(Normalized(), on_cpu=True)
    *_, of_first = norms_backward(graph)
    assert not images_made(graph, of_first)
    [memory] = overwritten(of_first)
    assert graph.blocks[memory].role is Role.GRADIENT
    program = fused_calls_of(of_first.call)
    assert program is not None and not program.scratch
    assert program.calls[-1].operator == "aten.copy_.default"


def test_a_gradient_that_is_read_again_is_not_written_over() -> None:
    graph = graph_of(Normalized(), on_cpu=True)
    for task in norms_backward(graph):
        for block in overwritten(task):
            readers = [each.index for each in graph.tasks if block in each.reads and each.index > task.index]
            makers = [each.index for each in graph.tasks if block in each.creates]
            assert makers[0] < task.index and all(index > task.index for index in readers)
    of_second = norms_backward(graph)[1]
    assert len(images_made(graph, of_second)) == 1  # its ReLU's gradient is added to the convolution's later


def test_an_activation_is_written_over_only_where_no_other_task_runs_between_those_that_use_it() -> None:
    graph = graph_of(Normalized(), on_cpu=True)
    activations = {
        (task.index, block)
        for task in graph.tasks
        for block in overwritten(task)
        if graph.blocks[block].role is Role.ACTIVATION
    }
    assert activations
    for index, block in activations:
        users = [task.index for task in graph.tasks[: index + 1] if block in (*task.reads, *task.writes)]
        assert users == list(range(users[0], index + 1))


def test_the_gradient_of_logits_lies_where_they_lay() -> None:
    targets = torch.randint(50, (6,))
    work = Workload("head", nn.Linear(8, 50), nn.CrossEntropyLoss(), (torch.randn(6, 8),), (targets,))
    graph = fused(capture(work).graph, on_cpu=True)
    [logits] = graph.tasks[0].creates
    [gradient] = (task for task in graph.tasks if logits in overwritten(task))
    assert gradient.phase is Phase.BACKWARD
    assert {graph.blocks[block].role for block in gradient.creates} == {Role.WEIGHT_GRADIENT}  # of the bias


def test_a_task_needs_less_by_what_is_not_made() -> None:
    graphs = [graph_of(Normalized(), on_cpu=on_cpu) for on_cpu in (False, True)]
    needed = [graph.needed_bytes[norms_backward(graph)[-1].index] for graph in graphs]
    assert needed[0] - needed[1] == IMAGE_BYTES
