"""Copies by which cuDNN brings a convolution into the layout of its kernels.

Kernels of tensor cores take images with their channels next to each other (NHWC, NDHWC). cuDNN copies what lies
otherwise (NCHW, NCDHW) into its workspace: images and filters before a kernel, its result after it.

Three dimensions. Known: half precision, without groups, forward, on an RTX 4090 (the peaks of decoding by a Qwen-Image
VAE, three sizes, within 0.3 %; these rows were known when this was written, see decision 9). Assumed to be the same:
bfloat16, both gradients, transposed convolutions, groups, any number of channels, and every card whose tensor cores
have the format. Not known, and not counted: single precision, with TF32 or without.

Two dimensions: gradients of filters larger than 1 x 1, without groups, in half precision and TF32. Forward passes and
gradients of images have kernels that take images as they lie. Decided on what networks hold on an H200 and an A100
(docs/choices.md). `benchmarks/gpu_visit/convolutions.py` measures single convolutions.
"""

from math import prod

import torch

from membench.core.graph.call import Call, ShapeOf, Value
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Task
from membench.core.hardware.device import DeviceProfile

_FORWARD, _BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
_HALVES = (torch.float16, torch.bfloat16)
_OF_TENSOR_CORES = (Precision.TF32, Precision.FP16, Precision.BF16)


def conversions(call: Call | None) -> tuple[int, ...]:
    """Return the bytes that each call of cuDNN copies for a convolution in three dimensions, or for its gradients.

    Both gradients are two calls, one after another. Depthwise convolutions run PyTorch's own kernels, unless their
    channels lie next to each other, where there is nothing to copy (`use_cudnn_depthwise` in
    ``aten/src/ATen/native/Convolution.cpp``).
    """
    if call is None or call.operator not in (_FORWARD, _BACKWARD):
        return ()
    values = [item.value if isinstance(item, ShapeOf) else item for item in call.args[:3]]
    groups = call.args[8 if call.operator == _FORWARD else 9]
    if call.operator == _FORWARD:
        images, weight, used = values[0], values[1], [(*values[:2], call.outputs[0])]
    else:
        upstream, images, weight = values
        of_images, of_weight, _ = call.outputs
        wanted = (of_images is not None, of_weight is not None)
        halves = [(upstream, weight, of_images), (upstream, images, of_weight)]
        used = [half for half, is_wanted in zip(halves, wanted, strict=True) if is_wanted]
    if len(weight.shape) != 5 or images.dtype not in _HALVES or 1 < groups == images.shape[1]:
        return ()
    return tuple(sum(map(_converted_bytes, each)) for each in used)


def gap_copies_bytes(call: Call) -> int:
    """Return the bytes that PyTorch moves to copy images with gaps between their elements; 0 of other operators.

    Such images are some channels of a larger tensor. Before it runs a convolution or its gradients, PyTorch calls
    ``contiguous`` on images and gradients (``aten/src/ATen/native/Convolution.cpp``, ``cudnn/ConvShared.cpp`` and
    ``cuda/DepthwiseConv2d.cu``), which a capture does not record.
    """
    given = call.args[: {_FORWARD: 1, _BACKWARD: 2}.get(call.operator, 0)]
    copied = [value for value in given if isinstance(value, Value) and not _is_dense(value)]
    return sum(value.moved_bytes + prod(value.shape) * value.dtype.itemsize for value in copied)


def weight_gradient_copies_bytes(task: Task, device: DeviceProfile) -> int:
    """Return the bytes that cuDNN copies for the gradient of a 2-D convolution's filters; 0 for other tasks."""
    has_kernels = device.compute_capability is not None and task.precision in device.precision_ops_per_s
    if task.convolution is None or task.call is None or task.precision not in _OF_TENSOR_CORES or not has_kernels:
        return 0
    if task.call.operator != _BACKWARD or task.convolution.groups > 1 or prod(task.convolution.kernel_size) == 1:
        return 0
    upstream, images = (item.value if isinstance(item, ShapeOf) else item for item in task.call.args[:2])
    of_weight = task.call.outputs[1]
    return sum(map(_converted_bytes, (upstream, images, of_weight))) if of_weight is not None else 0


def has_kernels(call: Call, device: DeviceProfile) -> bool:
    """Return whether a device has cuDNN, by its compute capability, and tensor cores for a convolution's format."""
    precision = Precision.of_dtype(call.args[0].dtype)
    return device.compute_capability is not None and precision in device.precision_ops_per_s


def _is_dense(value: Value) -> bool:
    """Return whether the elements lie next to each other, in any order of the axes."""
    expected = 1
    for step, size in sorted((step, size) for size, step in zip(value.shape, value.stride, strict=True) if size > 1):
        if step != expected:
            return False
        expected *= size
    return True


def _converted_bytes(value: Value | None) -> int:
    is_converted = value is not None and value.shape[1] > 1 and value.stride[1] != 1
    return value.moved_bytes if value is not None and is_converted else 0
