"""membench: memory strategies for training large networks, on one core, simulated and measured."""

from typing import Any

__all__ = ["SimulatedStep", "StepMeasurement", "TrainingStep", "compile"]


def __getattr__(name: str) -> Any:
    """Import the library entry on first use: reports and figures need units and records, not torch."""
    if name in __all__:
        from membench import step

        return getattr(step, name)
    raise AttributeError(f"module 'membench' has no attribute {name!r}")
