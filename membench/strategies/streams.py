"""Streams of a layer's gradients, as in Caffe over cuDNN (Layrub, Section 4.3)."""

from membench.core.graph.schedule import COMPUTE_STREAM
from membench.core.graph.task_graph import GradientOf, Kind, Task

WEIGHT_GRADIENT_STREAM = "weight gradient"


def gradient_stream(task: Task, *, separate: bool) -> str:
    """Return the stream of a task: a convolution's weight gradient may run in parallel with its data gradient."""
    if separate and task.kind is Kind.CONVOLUTION and task.gradient_of is GradientOf.WEIGHT:
        return WEIGHT_GRADIENT_STREAM
    return COMPUTE_STREAM
