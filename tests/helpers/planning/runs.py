"""Runs of small steps, for the tests of pictures and traces."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch
from torch import nn

import membench
from membench.core import configuration
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.hardware.efficiency import Efficiency
from membench.cost.roofline import RooflineCost
from membench.pictures.observed_step import ObservedStep, RepeatedRun
from membench.steps.plan import plan
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import find_strategy
from tests.helpers.planning.chains import chain_of_sizes

DEVICE = configuration.load("device", "k40m")


def chain_run(strategy: str, activation_bytes: Sequence[int], count: int = 1) -> ObservedStep:
    """A step of a chain of layers, simulated, in `count` micro-batches."""
    cost = RooflineCost(DEVICE, Efficiency(arithmetic=0.5, memory=0.5, launch_s=1e-6))
    schedule = plan(chain_of_sizes(activation_bytes), find_strategy(strategy)(), cost, None)
    timelines = simulated_step((RepeatedSchedule(schedule),), cost).timelines
    return ObservedStep("a chain", (RepeatedRun(schedule, timelines[0], count),), DEVICE.memory_bytes)


@cache
def network_run(strategy: str) -> ObservedStep:
    """A step of a small convolutional network, simulated."""
    with torch.device("meta"):
        layers = [layer for _ in range(3) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True))]
        module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 64, 3))
        batch = torch.randn(4, 4, 8, 8), torch.randint(3, (4,))
    try:
        step = membench.compile(
            module, nn.functional.cross_entropy, batch, strategy=strategy, backend="simulated", device=DEVICE
        )
    except UnsupportedStrategy as error:
        pytest.skip(str(error))
    assert isinstance(step, membench.SimulatedStep)
    return ObservedStep("a network", (RepeatedRun(step.plan[0].schedule, step.timelines[0]),), DEVICE.memory_bytes)
