"""membench: memory strategies for training large networks, on one core, simulated and measured."""

from importlib import import_module
from typing import Any

_HOMES = {
    "compile": "membench.steps.compile",
    "CompiledStep": "membench.steps.compiled_step",
    "MicroBatchedStep": "membench.steps.micro_batched_step",
    "SimulatedStep": "membench.steps.simulated_step",
    "StepMeasurement": "membench.steps.measurement",
}

__all__ = ["CompiledStep", "MicroBatchedStep", "SimulatedStep", "StepMeasurement", "compile"]


def __getattr__(name: str) -> Any:
    """Import the library entry on first use: reports and figures need units and records, not torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'membench' has no attribute {name!r}")
