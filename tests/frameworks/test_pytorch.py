import torch
from torch import nn

from membench.capture.capture import capture
from membench.core import configuration
from membench.core.step.workload import Workload
from membench.frameworks.base import Framework


def test_lowering_is_the_identity() -> None:
    inputs, targets = torch.randn(2, 4), torch.randint(3, (2,))
    graph = capture(Workload("linear", nn.Linear(4, 3), nn.CrossEntropyLoss(), (inputs,), (targets,))).graph
    assert configuration.load("framework", "pytorch").lower(graph) is graph


def test_every_configured_framework_is_named_like_its_file() -> None:
    for name in configuration.names("framework"):
        framework = configuration.load("framework", name)
        assert isinstance(framework, Framework)
        assert name == framework.name or name.startswith(f"{framework.name}_")  # fitted for one paper
        assert 0 < framework.efficiency.arithmetic <= 1
        assert 0 < framework.efficiency.memory <= 1
