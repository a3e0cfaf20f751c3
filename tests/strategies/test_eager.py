"""Eager: what PyTorch itself does, no more calls than it makes."""

import torch
from torch import nn
from torchvision.models.densenet import DenseNet

from membench.capture.capture import capture
from membench.core.task_graph import Kind, Phase
from membench.core.workload import Workload
from membench.strategies.eager import Eager
from tests.helpers.networks import COST


def test_the_backward_of_a_convolution_is_one_call() -> None:
    """In DenseNet gradients of other activations are added up between a convolution's weight and data gradient."""
    module = DenseNet(growth_rate=4, block_config=(3, 2), num_init_features=8, num_classes=4)
    inputs, targets = torch.zeros(2, 3, 64, 64), torch.zeros(2, dtype=torch.long)
    graph = capture(Workload("densenet", module, nn.functional.cross_entropy, (inputs,), (targets,))).graph
    tasks = Eager().schedule(COST.annotate(graph), COST, None).graph.tasks
    phases = [task.phase for task in tasks if task.kind == Kind.CONVOLUTION]
    assert phases.count(Phase.BACKWARD) == phases.count(Phase.FORWARD)
    assert [task.index for task in tasks] == list(range(len(tasks)))
