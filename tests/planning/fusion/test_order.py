"""The order of fused tasks: gradients of weights that are larger than what they are made from."""

import pytest
import torch
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.core.graph.call import Value
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.workload import Workload
from membench.planning.fusion.graph import fused
from membench.strategies.base import find_strategy
from tests.helpers.planning.costs import UnitCost

CONVOLUTION_BACKWARD = "aten.convolution_backward.default"


class Headed(nn.Module):
    """Convolutions, and a linear layer behind their means."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(layer for _ in range(3) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()))
        )
        self.head = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))


def graphs(classes: int) -> tuple[TaskGraph, TaskGraph]:
    """Return the fused graph in the program's order and in that of the CPU."""
    work = Workload("headed", Headed(classes), lambda output: output.sum(), (torch.randn(2, 8, 16, 16),))
    graph = capture(work).graph
    return fused(graph), fused(graph, on_cpu=True)


def maker(graph: TaskGraph, weight: str) -> int:
    gradient = dict(graph.gradients)[weight]
    assert isinstance(gradient, Value)
    return next(task.index for task in graph.tasks if gradient.block in task.creates)


def peak_bytes(graph: TaskGraph) -> int:
    return find_strategy("eager")().schedule(graph, UnitCost(), None).peak_bytes


def test_a_gradient_larger_than_what_it_is_made_from_is_made_last() -> None:
    by_program, by_size = graphs(classes=1000)
    assert maker(by_program, "head.weight") < maker(by_program, "features.4.weight")
    assert maker(by_size, "head.weight") > maker(by_size, "features.0.weight")
    assert peak_bytes(by_size) <= peak_bytes(by_program) - 8 * 1000 * 4 + 2 * 1000 * 4 + 2 * 8 * 4


@pytest.mark.parametrize("classes", [1, 2])
def test_a_gradient_that_is_no_larger_stays(classes: int) -> None:
    by_program, by_size = graphs(classes)
    assert maker(by_size, "head.weight") == maker(by_program, "head.weight")


def test_both_gradients_of_a_convolution_stay_together() -> None:
    _, graph = graphs(classes=1000)
    calls = [task.call.operator if task.call else "" for task in graph.tasks]
    positions = [index for index, name in enumerate(calls) if name == CONVOLUTION_BACKWARD]
    assert maker(graph, "features.4.weight") + 1 in positions
    assert maker(graph, "features.2.weight") + 1 in positions
