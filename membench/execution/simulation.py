"""The time of a schedule on a simulated device."""

from membench.backends.simulated import SimulatedBackend
from membench.core.graph.schedule import Schedule
from membench.core.hardware.cost_model import CostModel
from membench.execution.executor import execute


def step_time_s(schedule: Schedule, cost: CostModel) -> float:
    """Return the simulated seconds of one run of a schedule."""
    return execute(schedule, SimulatedBackend(schedule.graph, cost)).step_time_s
