"""Eager: what PyTorch itself does, no more calls than it makes."""

import pytest

from membench.strategies.eager import Eager
from membench.task_graph import Kind, Phase
from tests.contract.networks import COST, reference


@pytest.mark.parametrize("network", ["densenet", "resnet18"])
def test_a_convolution_s_backward_is_one_call(network: str) -> None:
    """In DenseNet gradients of other maps are added up between a convolution's weight and data gradient."""
    graph = COST.annotate(reference(network).captured.graph)
    tasks = Eager().schedule(graph, COST, None).graph.tasks
    convolutions = [task for task in tasks if task.kind == Kind.CONVOLUTION]
    forward = [task for task in convolutions if task.phase == Phase.FORWARD]
    backward = [task for task in convolutions if task.phase == Phase.BACKWARD]
    assert len(backward) == len(forward) < len([t for t in graph.tasks if t.kind == Kind.CONVOLUTION]) // 2
    assert [task.index for task in tasks] == list(range(len(tasks)))
