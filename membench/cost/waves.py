"""Waves of thread blocks: how full a kernel makes a device.

A kernel's outputs are computed in tiles, one for each thread block, and the blocks run in waves over the
multiprocessors. A kernel of a small batch has few blocks: part of the device idles, and too few loads are under way to
hide their latency. The fraction of a rate that it reaches is taken as w / (w + h) for w waves: nearly proportional to w
for a small kernel, 1 for a large one, and half at h waves. Published times of convolutions on five later devices follow
it (NeuSight's data: on a P100 h is 0.7 to 0.9, on a T4 0.6 to 1.0); which h holds for a library is fitted (`membench
fit waves`).
"""

from math import ceil

from membench.core.graph.task_graph import GradientOf, Task

TILE_OUTPUTS = 128 * 64
"""Of one thread block: the tile after which many of cuDNN's kernels are named."""
_BYTES_PER_OUTPUT = 8
"""Moved by an elementwise kernel for each output: one number read, one written."""


def task_waves(task: Task, multiprocessors: int, tile_channels: int = 1) -> float:
    """Return the waves of a task's thread blocks, each of `TILE_OUTPUTS` outputs, as a real number.

    A weight gradient is taken to have as many blocks as the forward pass, among which its sum over the images is
    divided. A task that is not a convolution is taken to have an output for every eight bytes that it moves; so the
    blocks of an inner product of few samples divide its weights.

    Args:
        tile_channels: a convolution's blocks are whole in channels, see `tile_fill`.
    """
    return _outputs(task) / tile_fill(task, tile_channels) / TILE_OUTPUTS / multiprocessors


def tile_fill(task: Task, tile_channels: int) -> float:
    """Return the part of a convolution's tiles that is not empty: of the channels that its product computes.

    Whole tiles show in a published log of Caffe over cuDNN 4 (soumith/convnet-benchmarks, 28 February 2016, GoogLeNet
    on a Titan X). 1 x 1 convolutions of 512 channels of 14 x 14 reach 2.0, 3.3, 4.0, 3.1 and 4.3 TFLOPS with 24, 64,
    128, 144 and 256 channels (the last of 528); in whole tiles of 64 that is 3.3 to 5.4.

    Args:
        tile_channels: channels of a tile.
    """
    if task.convolution is None:
        return 1.0
    channels = _channels(task) // task.convolution.groups
    return channels / (tile_channels * ceil(channels / tile_channels))


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
    height, width = convolution.input_size if task.gradient_of is GradientOf.DATA else convolution.output_size
    return convolution.images * _channels(task) * height * width


def _channels(task: Task) -> int:
    """Return the channels of the tensor that a convolution's product is as large as, see `task_waves`."""
    assert task.convolution is not None
    is_data = task.gradient_of is GradientOf.DATA
    return task.convolution.input_channels if is_data else task.convolution.output_channels
