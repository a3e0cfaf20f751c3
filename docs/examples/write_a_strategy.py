"""Write a strategy: recompute what is cheap, keep what is expensive.

The results of batch normalisation, ReLU and pooling are dropped in the forward pass and computed again in the
backward pass; convolutions and linear layers run once. SuperNeurons (PPoPP 2018) recomputes in the same way
between its checkpoints, but also offloads the checkpoints.
"""

from itertools import groupby

import torch
from torch import nn

import membench
from membench.strategies import (
    CostModel,
    Kind,
    LayerTasks,
    Repeatable,
    Schedule,
    ScheduleBuilder,
    Segment,
    Strategy,
    TaskGraph,
    compute_on_demand,
    recompute,
)
from membench.strategies.eager import Eager


class RecomputeCheap(Strategy):
    """Recomputes each run of cheap layers; everything else is held from its first use to its last."""

    name = "recompute_cheap"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        """Return the schedule of one step."""
        segments = [
            Segment(frozenset().union(*(layer.creates for layer in layers)))
            for cheap, layers in groupby(graph.forward_layers, is_cheap)
            if cheap
        ]
        graph = recompute(Repeatable(graph, cost), segments)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(builder, graph.tasks)
        return builder.finish()


def is_cheap(layer: LayerTasks) -> bool:
    """Return whether a layer costs little to run again."""
    return layer.has_kind(Kind.BATCH_NORM, Kind.RELU, Kind.POOLING)


def network(blocks: int = 6, channels: int = 16) -> nn.Module:
    """Return blocks of convolution, batch normalisation and ReLU, and a classifier of ten classes."""
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(blocks):
        layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 32 * 32, 10))


def main() -> None:
    """Run the new strategy next to eager execution; compare memory, loss and gradients."""
    torch.manual_seed(0)
    model = network()
    inputs, targets = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
    gradients = []
    for strategy in (Eager(), RecomputeCheap()):
        step = membench.compile(model, nn.functional.cross_entropy, (inputs, targets), strategy=strategy)
        model.zero_grad()
        loss = step(inputs, targets).item()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
        print(f"{strategy.name:<16} {step.predicted_peak_bytes / 2**20:5.2f} MB   loss {loss!r}")
    same = all(torch.equal(first, second) for first, second in zip(*gradients, strict=True))
    print("the same gradients, bit for bit" if same else "the gradients differ")


if __name__ == "__main__":
    main()
