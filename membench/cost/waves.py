"""Waves of thread blocks: how full a kernel makes a device.

A kernel's outputs are computed in tiles, one for each thread block, and the blocks run in waves over the
multiprocessors. A kernel of a small batch has few blocks: part of the device idles, and too few loads are under way to
hide their latency. The fraction of a rate that it reaches is taken as w / (w + h) for w waves: nearly proportional to w
for a small kernel, 1 for a large one, and half at h waves. Published times of convolutions on five later devices follow
it (NeuSight's data: on a P100 h is 0.7 to 0.9, on a T4 0.6 to 1.0); which h holds for a library is fitted (`membench
fit waves`).
"""

from membench.core.graph.task_graph import GradientOf, Task

TILE_OUTPUTS = 128 * 64
"""Of one thread block: the tile after which many of cuDNN's kernels are named."""
_BYTES_PER_OUTPUT = 8
"""Moved by an elementwise kernel for each output: one number read, one written."""


def task_waves(task: Task, multiprocessors: int) -> float:
    """Return the waves of a task's thread blocks, each of `TILE_OUTPUTS` outputs, as a real number.

    A weight gradient is taken to have as many blocks as the forward pass, among which its sum over the images is
    divided. A task that is not a convolution is taken to have an output for every eight bytes that it moves; so the
    blocks of an inner product of few samples divide its weights.
    """
    return _outputs(task) / TILE_OUTPUTS / multiprocessors


def wave_efficiency(waves: float, half_waves: float) -> float:
    """Return the fraction of its rate that a kernel reaches.

    Args:
        half_waves: at which it is a half; 0: it is 1 for any kernel.
    """
    return waves / (waves + half_waves) if waves else 1.0


def _outputs(task: Task) -> float:
    convolution = task.convolution
    if convolution is None:
        return task.moved_bytes / _BYTES_PER_OUTPUT
    if task.gradient_of is GradientOf.DATA:
        channels, (height, width) = convolution.input_channels, convolution.input_size
    else:
        channels, (height, width) = convolution.output_channels, convolution.output_size
    return convolution.images * channels * height * width
