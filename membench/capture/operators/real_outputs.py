"""Outputs as kernels return them, where shape functions differ."""

from typing import Any

import torch
from torch import Tensor

from membench.capture.operators.aten import operator_name
from membench.capture.operators.lstm import with_lstm_workspace
from membench.core.libraries.torch_devices import cudnn_batch_norm_reserve_bytes
from membench.core.libraries.torch_internals import OpOverload, suggest_memory_format, tree_map_only

_LOSSES = {"mse_loss": 2, "smooth_l1_loss": 2, "soft_margin_loss": 2, "binary_cross_entropy": 3}
"""Losses whose result shares the memory of the elements that they reduce; position of the `reduction` argument."""

_NORMALIZATIONS = {"native_batch_norm": 1, "native_layer_norm": 2, "native_group_norm": 1}
"""Normalizations; position of the `weight` argument."""


def with_real_outputs(operator: OpOverload, args: tuple[Any, ...], output: Any, *, has_device: bool = True) -> Any:
    """Correct outputs for which an operator's shape function differs from its kernels.

    Batch norm's kernels return the memory format that the input suggests, contiguous or channels last, where the shape
    function keeps any permutation. Layer norm's backward returns a contiguous gradient. Dropout's backward is a product
    on the CPU. Statistics of half-precision activations have the weight's precision on the CPU. Some reduced losses
    keep the memory of all elements. oneDNN's LSTM keeps a workspace. Gradients that the output mask leaves out are not
    made. Queries, keys and values lie in one memory, which torch's cache of fake tensors does not keep. cuDNN's
    convolutions in bfloat16 keep channels last.

    Args:
        has_device: the device is one of this machine's, and can be asked.
    """
    name = operator_name(operator)
    if name in _NORMALIZATIONS and args[0].device.type == "cpu":
        output = _with_statistics_like(args[_NORMALIZATIONS[name]], output)
    match name:
        case "_transform_bias_rescale_qkv":
            return output[0].new_empty(3, *output[0].shape).unbind()
        case "mkldnn_rnn_layer":
            return with_lstm_workspace(args, output)
        case "mse_loss" | "smooth_l1_loss" | "soft_margin_loss" | "binary_cross_entropy":
            return _reduced_in_place(args, output) if _reduces(name, args) else output
        case "native_dropout_backward":
            if args[0].device.type == "cpu":
                return args[0] * args[1]
            return torch.empty_like(args[0], memory_format=suggest_memory_format(args[0]))
        case "convolution" | "convolution_backward" if not has_device and args[0].dtype is torch.bfloat16:
            return _of_cudnn(args[:2] if name == "convolution" else args[1:3], output)
        case "native_batch_norm" | "cudnn_batch_norm_backward" | "cudnn_batch_norm":
            memory_format = suggest_memory_format(args[0])
            output = _with_reserve(args, output, has_device) if name == "cudnn_batch_norm" else output
        case "native_batch_norm_backward":
            memory_format = suggest_memory_format(args[1])
            output = (each if is_wanted else None for each, is_wanted in zip(output, args[9], strict=True))
        case "native_layer_norm_backward":
            memory_format = torch.contiguous_format
        case _:
            return output
    return _in_format(memory_format, *output)


def _of_cudnn(factors: tuple[Tensor, ...], output: Any) -> Any:
    """Return a convolution's results in bfloat16 as cuDNN makes them: channels last if one of the factors is.

    Without a GPU, torch takes cuDNN to have no convolutions in bfloat16, and its shape functions the format of other
    kernels.
    """
    channels_last = any(suggest_memory_format(each) is torch.channels_last for each in factors)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return tree_map_only(Tensor, lambda each: _in_format(memory_format, each)[0] if each.dim() == 4 else each, output)


def _in_format(memory_format: torch.memory_format, first: Any, *others: Any) -> tuple[Any, ...]:
    if isinstance(first, Tensor) and not first.is_contiguous(memory_format=memory_format):
        first = torch.empty_like(first, memory_format=memory_format)
    return first, *others


def _with_reserve(args: tuple[Any, ...], output: Any, has_device: bool) -> tuple[Tensor, ...]:
    is_training = args[5]
    asked = cudnn_batch_norm_reserve_bytes if has_device and torch.cuda.is_available() else _reserve_bytes
    return *output[:3], output[3].new_empty(asked(args[0]) if is_training else 0)


def _reserve_bytes(images: Tensor) -> int:
    """Return what cuDNN's batch norm is assumed to keep for its backward pass, where cuDNN cannot be asked.

    PyTorch lets it use its persistent kernel for images in half precision that are channels last, which is assumed to
    keep one bit for each element; its other kernels keep nothing. Only cuDNN itself computes the size.
    """
    is_persistent = images.itemsize == 2 and images.is_contiguous(memory_format=torch.channels_last)
    return -(-images.numel() // 8) if images.dim() == 4 and is_persistent else 0


def _reduces(loss: str, args: tuple[Any, ...]) -> bool:
    position = _LOSSES[loss]
    return len(args) <= position or args[position] != 0  # the default is the mean


def _reduced_in_place(args: tuple[Any, ...], output: Tensor) -> Tensor:
    """Return a scalar in memory for as many elements as the broadcast prediction and target have."""
    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
    return output.new_empty(shape).as_strided((), ())


def _with_statistics_like(weight: Tensor | None, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    normalized, *statistics = output
    if weight is None:
        return output
    return normalized, *(torch.empty_like(each, dtype=weight.dtype) for each in statistics)
