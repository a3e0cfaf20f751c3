"""membench: memory strategies for training large networks, on one core, simulated and measured."""

from importlib import import_module
from typing import Any

_HOMES = {
    "compile": "membench.step",
    "TrainingStep": "membench.training_step",
    "SubBatchedStep": "membench.sub_batched_step",
    "SimulatedStep": "membench.simulated_step",
    "StepMeasurement": "membench.step_measurement",
}

__all__ = ["SimulatedStep", "StepMeasurement", "SubBatchedStep", "TrainingStep", "compile"]


def __getattr__(name: str) -> Any:
    """Import the library entry on first use: reports and figures need units and records, not torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'membench' has no attribute {name!r}")
