"""Graphs to lower, and queries on lowered graphs."""

import torch
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.core.graph.task_graph import Phase, Role, Task, TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency
from membench.core.hardware.machine import Machine
from membench.core.step.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.sweep.cells.model import Model

ANY = (
    DeviceProfile("any", 10**15, 1e12, 1e11, 1e10, 1e10, 0.0, True),
    Efficiency(1.0, 1.0),
    Machine("any", 10**15, 2e10),
)
"""Device, efficiency and machine."""
COST = RooflineCost(*ANY)
"""Of a device that has memory for everything."""


def captured(module: nn.Module, *shape: int, targets: tuple[int, ...] | None = None) -> TaskGraph:
    """Capture a network of ten classes; `targets` is the shape of the labels, by default one for each image."""
    inputs, labels = torch.randn(*shape), torch.randint(10, targets or shape[:1])
    return capture(Workload("network", module, nn.CrossEntropyLoss(), (inputs,), (labels,))).graph


def captured_model(name: str, batch_size: int) -> TaskGraph:
    """Capture a model of ``conf/model``."""
    return capture(Model.named(name).workload(batch_size, seed=0, device="meta")).graph


class Residual(nn.Module):
    """A post-activation block: convolution, batch norm, sum with a shortcut, ReLU; then dropout and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1, bias=False)
        self.bn, self.relu, self.drop = nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout()
        self.classifier = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images)
        x = self.relu(self.bn(self.second(x)) + x)
        return self.classifier(self.drop(torch.flatten(x, 1)))


class Doubling(nn.Module):
    """A sum of an activation with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.classifier = nn.Linear(4, 4), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.linear(x))
        return self.classifier(x + x)


def held(graph: TaskGraph, *roles: Role) -> int:
    return sum(block.size_bytes for block in graph.blocks if block.role in roles)


def sizes(graph: TaskGraph, role: Role) -> dict[str, int]:
    return {block.name: block.size_bytes for block in graph.blocks if block.role is role}


def tasks_of(graph: TaskGraph, layer: str, phase: Phase) -> list[Task]:
    return [task for task in graph.tasks if graph.layers[task.layer] == layer and task.phase is phase]


def names(graph: TaskGraph, blocks: tuple[int, ...]) -> set[str]:
    return {graph.blocks[block].name for block in blocks}
