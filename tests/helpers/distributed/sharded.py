"""A small checkpointed network with weights in shards over four ranks, and a cost in which collectives take time."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from membench.capture.capture import Captures
from membench.capture.trace import ANY_GPU
from membench.capture.update.captured_update import CapturedUpdate
from membench.core.graph.task_graph import Task, TaskGraph
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.sharding import Sharding
from membench.core.step.workload import Workload
from membench.planning.parallel.sharding import shard
from membench.planning.rewrites.update import add_update
from membench.steps.parallel.blocks import groups_of, kept_dtypes, repeated_classes
from tests.helpers.planning.costs import UnitCost

LAYERS, WIDTH, SAMPLES = 4, 16, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rise, self.fall = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.fall(nn.functional.gelu(self.rise(inputs)))


class Network(nn.Module):
    """Regions of `torch.utils.checkpoint` around each block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        for block in self.blocks:
            inputs = checkpoint(partial(block), inputs, use_reentrant=False)
        return self.head(inputs)


NETWORK = Network()
SHARDING = Sharding(4, groups_of(NETWORK, repeated_classes(NETWORK)), kept_dtypes=kept_dtypes(NETWORK))


@cache
def _captured() -> TaskGraph:
    batch = (torch.randn(SAMPLES, WIDTH),), (torch.arange(SAMPLES) % 10,)
    return Captures(Workload("blocks", NETWORK, nn.CrossEntropyLoss(), *batch), ANY_GPU).graph_at(SAMPLES)


@cache
def sharded_graph(**options: Any) -> TaskGraph:
    """Return a rank's step with its update, under some of `Sharding`'s options."""
    graph = shard(_captured(), replace(SHARDING, **options))
    return add_update(graph, CapturedUpdate(WeightUpdate(torch.optim.Adam), NETWORK))


class Collectives(UnitCost):
    """Two seconds per task, half a second of launch, and some seconds per 1,000 bytes of a collective or of a copy.

    Args:
        gathering: time of a collective; `copying`: time of a copy to the host or back.
        share: share of the device that a collective takes.
    """

    def __init__(self, gathering: float, copying: float = 1.0, share: float = 0.0) -> None:
        self._gathering, self._copying, self._share = gathering, copying, share

    @property
    def collective_share(self) -> float:
        return self._share

    def task_time_s(self, task: Task) -> float:
        return 2.0 if task.collective is None else self._gathering * task.collective.size_bytes / 1000

    def offload_time_s(self, size_bytes: int) -> float:
        return self._copying * size_bytes / 1000

    prefetch_time_s = offload_time_s
