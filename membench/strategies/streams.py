"""Streams of a convolution's gradients, as in Caffe over cuDNN (Layrub, Section 4.3).

The gradients of its biases, its weights and its data run on three streams; the third is the compute stream here, on
which nothing else runs meanwhile. Caffe waits for all of them at the layer's end (``cudnn_conv_layer.cu``).
"""

from membench.core.graph.schedule import COMPUTE_STREAM
from membench.core.graph.task_graph import GradientOf, Kind, Task
from membench.planning.builder import ScheduleBuilder

BIAS_GRADIENT_STREAM = "bias gradient"
WEIGHT_GRADIENT_STREAM = "weight gradient"


def gradient_stream(task: Task, *, separate: bool) -> str:
    """Return the stream of a task, which may be one of its own for a gradient of a convolution's weights or biases."""
    if separate and task.gradient_of is GradientOf.BIAS:
        return BIAS_GRADIENT_STREAM
    if separate and task.kind is Kind.CONVOLUTION and task.gradient_of is GradientOf.WEIGHT:
        return WEIGHT_GRADIENT_STREAM
    return COMPUTE_STREAM


def compute_on_streams(builder: ScheduleBuilder, task: Task, *, separate: bool, barriers: bool) -> None:
    """Run a task on its stream, after what its layer, or the layer before, has on others.

    Args:
        separate: see `gradient_stream`.
        barriers: a data gradient, too, waits for its convolution's other gradients.
    """
    stream = gradient_stream(task, separate=separate)
    may_overlap = task.kind is Kind.CONVOLUTION and task.gradient_of is GradientOf.DATA and not barriers
    if stream == COMPUTE_STREAM and not may_overlap:
        builder.join(BIAS_GRADIENT_STREAM, WEIGHT_GRADIENT_STREAM)
    builder.compute(task, stream=stream)
