"""Steps that are kept: how many, and the host memory that they take."""

import gc
import tracemalloc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.core.graph.schedule import Offload, Schedule
from membench.steps.real.kept_steps import MOST_KEPT

SHAPES = 20
BYTES_PER_INSTRUCTION = 6_000
"""The most that a kept step takes for each of its instructions (docs/wrap.md), in addition to the host's copies."""


def held_tensors() -> Iterator[tuple[int, int]]:
    """Yield address and bytes of each tensor in this process."""
    gc.collect()
    for each in gc.get_objects():
        if type(each) is Tensor and each.device.type == "cpu" and each.layout is torch.strided:
            yield each.untyped_storage().data_ptr(), each.untyped_storage().nbytes()


def host_copies_bytes(schedule: Schedule) -> int:
    """Return the bytes of what a schedule copies to the host."""
    offloaded = {each.block for each in schedule.instructions if isinstance(each, Offload)}
    return sum(schedule.graph.blocks[block].size_bytes for block in offloaded)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["layrub_hybrid", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("eager", "memonger"))]
)
def test_twenty_shapes_take_the_stated_memory(strategy: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.1)]
    module = membench.wrap(nn.Sequential(*layers, *layers), strategy=strategy)

    def train(size: int) -> None:
        module(torch.randn(size, 16)).square().sum().backward()
        module.zero_grad(set_to_none=True)

    train(SHAPES + 1)  # imports, caches of torch
    tensors_before = dict(held_tensors())
    tracemalloc.start()
    for size in range(1, SHAPES + 1):
        train(size)
    gc.collect()
    taken_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    schedules = [step.schedule for step in module.wrapped_calls.steps[1:]]
    assert len(schedules) == SHAPES < MOST_KEPT
    assert taken_bytes < BYTES_PER_INSTRUCTION * sum(len(schedule.instructions) for schedule in schedules)
    added_bytes = sum(dict(held_tensors()).values()) - sum(tensors_before.values())
    assert added_bytes <= sum(map(host_copies_bytes, schedules))
