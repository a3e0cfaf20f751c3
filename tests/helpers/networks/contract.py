"""The networks of the contract on the device under test, with what plain PyTorch computes there."""

from collections.abc import Callable
from functools import cache

import pytest
from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.conformance.networks import NETWORKS, workload_of
from membench.conformance.results import Reference, reference_of
from membench.core.step.workload import Workload
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.real.as_run import graph_as_run
from tests.helpers.devices import DEVICE

ONLY_EXHAUSTIVE = {
    *("convnext", "efficientnet", "googlenet", "mnasnet", "mobilenet_v2", "mobilenet_v3", "regnet"),
    *("resnet50", "resnext50", "shufflenet", "swin", "vgg11_bn"),
}
"""Tested under every strategy by `make test-exhaustive` only; relatives of theirs are tested always."""

EACH_NETWORK = [
    pytest.param(name, marks=[pytest.mark.exhaustive] if name in ONLY_EXHAUSTIVE else []) for name in NETWORKS
]


class Layer(nn.Module):
    """A function of named layers and weights, so that a network is one line."""

    def __init__(self, function: Callable[..., object], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> object:
        return self.function(self, *inputs)


COST = MeasuredCost(DEVICE)


def as_run(work: Workload) -> Reference:
    """Return a network captured with the layouts that its operators have on this CPU, where shape functions differ."""
    captures = Captures(work)
    graph_as_run(captures, COST, work.batch_size)
    return reference_of(work, captures.at(work.batch_size))


@cache
def reference(name: str) -> Reference:
    return reference_of(workload_of(name, DEVICE))
