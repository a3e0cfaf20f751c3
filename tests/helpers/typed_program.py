"""A user's program, which `make lint` type-checks: the public names have types, and any other name is an error."""

from typing import assert_type

import torch
from torch import nn

import membench
from membench.strategies import Schedule, ScheduleBuilder


def peak_bytes() -> int:
    """Return the memory of a small step on a simulated card."""
    step = membench.compile(nn.ReLU(), None, (torch.ones(8), ()), backend="simulated", device="k40m")
    assert_type(step, membench.CompiledStep | membench.MicroBatchedStep | membench.ShapedStep | membench.SimulatedStep)
    assert_type(step.measure(), membench.StepMeasurement)
    return assert_type(step.measure().peak_bytes, int)


def finish(builder: ScheduleBuilder) -> Schedule:
    """Return a schedule, whose type comes with the author's kit."""
    return assert_type(builder.finish(), Schedule)


def missing() -> str:
    """Raise AttributeError."""
    return membench.missing + membench.__version__  # type: ignore[attr-defined]
