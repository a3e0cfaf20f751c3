"""Memory-saving methods, one file or folder each, and the author's kit: all that a new method needs, from one import.

docs/strategy.md explains it. A new file is found by `membench.strategies.base` without being listed anywhere.
"""

from membench.core.errors import InfeasibleSchedule, UnsupportedStrategy
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.schedule import COMPUTE_STREAM, Schedule
from membench.core.graph.task_graph import (
    EXTERNAL_ROLES,
    RESULT_ROLES,
    Block,
    Kind,
    LayerTasks,
    Mode,
    Phase,
    Role,
    Task,
    TaskGraph,
)
from membench.core.hardware.cost_model import CostModel
from membench.planning.algorithms import Preference, choose_algorithms, prefer
from membench.planning.builder import ScheduleBuilder
from membench.planning.encoding import add_encoded_forms, encoded_bytes, float32_activations
from membench.planning.pool import BestFitPool, FixedPool, Pool
from membench.planning.region import Region, plan_region
from membench.planning.rewrites.micro_batch import GraphAt, fitted_sizes
from membench.planning.rewrites.recompute import Repeatable, Segment, recompute
from membench.planning.rewrites.rewrite import join_convolution_backward, keep_on_host, mask_relu
from membench.strategies.base import Strategy
from membench.strategies.compression import compress
from membench.strategies.on_demand import compute_on_demand

__all__ = [
    "COMPUTE_STREAM",
    "EXTERNAL_ROLES",
    "RESULT_ROLES",
    "ActivationCodec",
    "BestFitPool",
    "Block",
    "CostModel",
    "FixedPool",
    "GraphAt",
    "InfeasibleSchedule",
    "Kind",
    "LayerTasks",
    "Mode",
    "Phase",
    "Pool",
    "Preference",
    "Region",
    "Repeatable",
    "Role",
    "Schedule",
    "ScheduleBuilder",
    "Segment",
    "Strategy",
    "Task",
    "TaskGraph",
    "UnsupportedStrategy",
    "add_encoded_forms",
    "choose_algorithms",
    "compress",
    "compute_on_demand",
    "encoded_bytes",
    "fitted_sizes",
    "float32_activations",
    "join_convolution_backward",
    "keep_on_host",
    "mask_relu",
    "plan_region",
    "prefer",
    "recompute",
]
