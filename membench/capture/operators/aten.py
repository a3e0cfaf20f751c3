"""Facts about ATen operators that their schemas do not state: kinds, geometry, aliasing and corrected outputs."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from membench.capture.operators.attention import computed_share, with_all_heads
from membench.capture.operators.flex_attention import FORMULAS
from membench.capture.operators.lstm import LAYER, LAYER_BACKWARD, lstm_operations
from membench.capture.operators.triton_launches import unread_arguments
from membench.core.graph.convolution import Convolution
from membench.core.graph.task_graph import GradientOf, Kind
from membench.core.libraries.torch_devices import convolution_kernel
from membench.core.libraries.torch_internals import OpOverload, flop_formulas, is_of_torch, no_dispatch, operator_schema

GROUPED_PRODUCT = "_grouped_mm"
"""One product of matrices for each group of rows, by offsets that are data: the layers of a mixture of experts."""

KINDS = {
    Kind.CONVOLUTION: {"convolution", "convolution_backward"},
    Kind.LINEAR: {"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "gemm_4bit", "gemv_4bit",
                  "_weight_int4pack_mm", "_weight_int8pack_mm", "int8_linear_matmul", GROUPED_PRODUCT, LAYER,
                  LAYER_BACKWARD},
    Kind.BATCH_NORM: {"native_batch_norm", "native_batch_norm_backward", "cudnn_batch_norm",
                      "cudnn_batch_norm_backward"},
    Kind.NORMALIZATION: {"native_layer_norm", "native_layer_norm_backward", "native_group_norm"},
    Kind.RELU: {"relu", "relu_", "threshold_backward"},
    Kind.ACTIVATION: {"gelu", "gelu_backward", "silu", "silu_", "silu_backward", "hardswish", "hardswish_",
                      "hardswish_backward", "hardtanh", "hardtanh_", "hardtanh_backward", "sigmoid", "tanh"},
    Kind.POOLING: {"max_pool2d_with_indices", "max_pool2d_with_indices_backward", "max_pool3d_with_indices",
                   "max_pool3d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward", "_adaptive_avg_pool2d",
                   "_adaptive_avg_pool2d_backward", "mean"},
    Kind.DROPOUT: {"native_dropout", "native_dropout_backward"},
    Kind.ADD: {"add", "add_"},
    Kind.CONCATENATE: {"cat"},
    Kind.LOSS: {"_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward",
                "nll_loss2d_forward", "nll_loss2d_backward"},
}  # fmt: skip
_KIND_OF_NAME = {name: kind for kind, names in KINDS.items() for name in names}

_SHAPE_ONLY_ARGUMENTS: dict[str, tuple[int, ...]] = {
    "max_pool2d_with_indices_backward": (1,),
    "max_pool3d_with_indices_backward": (1,),
    "avg_pool2d_backward": (1,),
    "_adaptive_avg_pool2d_backward": (1,),
    "empty_like": (0,),
    "zeros_like": (0,),
    "ones_like": (0,),
    "full_like": (0,),
    "new_zeros": (0,),
    "new_empty": (0,),
    "new_full": (0,),
    "new_ones": (0,),
}
"""Positions of tensor arguments whose shape, strides and dtype alone the operator reads."""


_GROUP_BY_GROUP = {
    "NnpackSpatial", "Slow2d", "SlowDilated2d", "SlowDilated3d", "SlowTranspose2d", "SlowTranspose3d",
}  # fmt: skip
"""CPU kernels that compute a grouped convolution's gradients one group after another."""

_IMAGE_BY_IMAGE = {"SlowDilated2d", "SlowDilated3d"}
"""CPU kernels that compute any convolution's gradients one image after another."""


def operator_name(operator: OpOverload) -> str:
    """Return ``"convolution"`` for ``aten.convolution.default``."""
    return operator.overloadpacket.__name__


def kind_of(operator: OpOverload) -> Kind:
    """Return what an operator computes."""
    name = operator_name(operator)
    if "attention" in name:
        return Kind.ATTENTION
    return _KIND_OF_NAME.get(name, Kind.OTHER)


def shape_only_arguments(operator: OpOverload, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the positions of arguments whose contents the operator does not read.

    A convolution's data gradient needs only the input's shape (Layrub 3.1), unless its kernel makes views of the input.
    """
    name = operator_name(operator)
    if name == "convolution_backward":
        return (1,) if args[10] == [True, False, False] and not _views_input(args) else ()
    return _SHAPE_ONLY_ARGUMENTS.get(name, ())


def _views_input(args: tuple[Any, ...]) -> bool:
    """Return whether a convolution's backward makes views of the input, so that the input must be resident.

    One-dimensional inputs are viewed as two-dimensional, and some CPU kernels compute group by group or image by image.
    """
    images, weight, bias_sizes, *geometry, groups = args[1:10]
    if images.dim() == 3:
        return True
    if images.device.type != "cpu":
        return False
    with no_dispatch():
        shapes = (torch.empty(1, dtype=each.dtype).expand(each.shape) for each in (images, weight))
        kernel = convolution_kernel(*shapes, *geometry, groups, bias_sizes=bias_sizes)
    return kernel in _IMAGE_BY_IMAGE or (groups > 1 and kernel in _GROUP_BY_GROUP)


def gradient_of(operator: OpOverload, args: tuple[Any, ...]) -> GradientOf:
    """Return the gradient that a backward operator computes; a pass marks the weight gradients of other layers."""
    if operator_name(operator) == "convolution_backward" and not args[10][0]:
        return GradientOf.WEIGHT
    return GradientOf.DATA


def convolution_of(operator: OpOverload, args: tuple[Any, ...], output: Any) -> Convolution | None:
    """Return the geometry of a two-dimensional convolution or of its gradients, else None."""
    match operator_name(operator):
        case "convolution":
            images, weight, result = args[0], args[1], output
            stride, padding, dilation, transposed, _, groups = args[3:9]
        case "convolution_backward":
            result, images, weight = args[:3]
            stride, padding, dilation, transposed, _, groups = args[4:10]
        case _:
            return None
    if transposed or weight.dim() != 4:
        return None
    return Convolution(
        images=images.shape[0],
        input_channels=images.shape[1],
        output_channels=weight.shape[0],
        input_size=tuple(images.shape[2:]),
        output_size=tuple(result.shape[2:]),
        kernel_size=tuple(weight.shape[2:]),
        stride=(stride[0], stride[-1]),
        padding=(padding[0], padding[-1]),
        dilation=(dilation[0], dilation[-1]),
        groups=groups,
        itemsize=images.itemsize,
    )


def written_arguments(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | str, ...]:
    """Return the positions and the names of the tensors that the operator updates in place.

    Batch norm updates its running statistics although the schemas of its operators do not declare it.
    """
    if operator_name(operator) in ("native_batch_norm", "cudnn_batch_norm"):
        written: list[int | str] = [3, 4] if args[5] else []
    else:
        written = _declared_as_written(operator, args)
    return tuple(at for at in written if isinstance(argument_at(at, args, kwargs), Tensor))


def _declared_as_written(operator: OpOverload, args: tuple[Any, ...]) -> list[int | str]:
    return [
        position if position < len(args) else argument.name
        for position, argument in enumerate(operator_schema(operator).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def overwritten(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the tensors, and lists of tensors, that an operator of an optimizer updates in place.

    A fused update writes to the gradients only to divide them by a scale.
    """
    written = _declared_as_written(operator, args)
    if operator_name(operator).startswith("_fused_") and kwargs.get("grad_scale") is None:
        written.remove(1)
    return [argument_at(at, args, kwargs) for at in written]


def makes_nothing(operator: OpOverload) -> bool:
    """Return whether all that an operator returns are arguments that it has written to."""
    returns = operator_schema(operator).returns
    return all(each.alias_info is not None and each.alias_info.is_write for each in returns)


def argument_at(at: int | str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a call's argument by its position or name; None if it was not given."""
    return args[at] if isinstance(at, int) else kwargs.get(at)


def unread_bytes(operator: OpOverload, args: tuple[Any, ...]) -> int:
    """Return the bytes of the arguments that an operator writes without reading them."""
    return sum(args[at].numel() * args[at].itemsize for at in unread_arguments(str(operator)))


def viewed_argument(operator: OpOverload, args: tuple[Any, ...]) -> int | None:
    """Return the position of the argument that the outputs are views of; None if they are not views."""
    position = _viewed_position(operator)
    return None if position is None or not isinstance(args[position], Tensor) else position


def viewed_number(operator: OpOverload, args: tuple[Any, ...]) -> int | None:
    """Return the position of a number of Python's in place of the tensor that outputs are views of, or None."""
    position = _viewed_position(operator)
    return None if position is None or type(args[position]) not in NUMBER_DTYPES else position


NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""Dtypes of the tensors that torch makes of Python's numbers (``aten/src/ATen/ScalarOps.h``, `scalar_to_tensor`)."""


@cache
def _viewed_position(operator: OpOverload) -> int | None:
    returns = operator_schema(operator).returns
    if not returns or returns[0].alias_info is None or returns[0].alias_info.is_write:
        return None
    aliases = returns[0].alias_info.before_set
    for position, argument in enumerate(operator_schema(operator).arguments):
        if argument.alias_info is not None and argument.alias_info.before_set & aliases:
            return position
    return None


def numbers(operator: OpOverload, args: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the names of arguments that are numbers in place of tensors: autograd may keep them as tensors."""
    pairs = zip(operator_schema(operator).arguments, args, strict=False)
    return tuple(
        each.name
        for each, arg in pairs
        if isinstance(arg, int | float | complex) and isinstance(each.type, torch.TensorType)
    )


_ARITHMETIC = {f"{foreach}{name}{ending}" for foreach in ("", "_foreach_") for name in ("add", "sub", "mul", "div")
               for ending in ("", "_")}  # fmt: skip


def number_bytes(operator: OpOverload, args: tuple[Any, ...]) -> int:
    """Return what the CPU's arithmetic on a tensor and a number allocates: an element of 64 bits, and its conversion.

    A mean is a sum that is divided by a number.
    """
    name = operator_name(operator)
    if name == "mean":
        number: Any = 1
    elif name in _ARITHMETIC and len(args) > 1 and not has_tensor(args[1]):
        number = args[1][0] if isinstance(args[1], list | tuple) else args[1]
    else:
        return 0
    element = args[0][0] if isinstance(args[0], list | tuple) else args[0]
    made = torch.float64 if isinstance(number, float) else torch.int64
    return made.itemsize + (0 if element.dtype is made else int(element.itemsize))


def has_tensor(argument: Any) -> bool:
    """Return whether an argument is a tensor or a list of them."""
    return any(isinstance(each, Tensor) for each in (argument if isinstance(argument, list | tuple) else [argument]))


_ATTENTION_DROPOUTS = {
    "_scaled_dot_product_cudnn_attention": 5,
    "_scaled_dot_product_flash_attention": 3,
    "_scaled_dot_product_efficient_attention": 5,
}
"""Fused attention by name; position of its probability of dropout, without which it draws nothing."""

_REPEATS_DRAWS = "_scaled_dot_product_efficient_attention_backward"
"""Tagged as random, but draws the numbers of the forward pass again from their seed."""


def is_random(operator: OpOverload, args: tuple[Any, ...]) -> bool:
    """Return whether an operator draws from a random generator."""
    name = operator_name(operator)
    position = _ATTENTION_DROPOUTS.get(name)
    if name == _REPEATS_DRAWS or (position is not None and not any(args[position : position + 1])):
        return False
    return torch.Tag.nondeterministic_seeded in operator.tags


def workspace_bytes(operator: OpOverload, args: tuple[Any, ...]) -> int:
    """Return what a gradient allocates besides its outputs in fused attention and CUDA's softmax, else 0.

    Softmax: the product of the incoming gradient and the result (``aten/src/ATen/native/cuda/SoftMax.cu``,
    `softmax_backward_cuda_out`). Compiled flex_attention: one number for each query
    (``torch/_inductor/kernel/flex/flex_attention.py``, `delta`). Others: Sums of the query's gradient in single
    precision, and one number for each query. Where several heads share a key, flash attention writes a gradient of keys
    and values for each head (PyTorch's ``flash_api.cpp``, `mha_bwd`; memory-efficient attention:
    ``kernel_backward.h``). That cuDNN's kernel needs as much is assumed.
    """
    name = operator_name(operator)
    if name == "_softmax_backward_data":
        return int(args[0].numel() * args[0].itemsize) if args[0].device.type == "cuda" else 0
    if name == "flex_attention_backward":
        return int(args[5].numel() * torch.float32.itemsize)
    if name not in (
        "_scaled_dot_product_cudnn_attention_backward",
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention_backward",
    ):
        return 0
    _, query, key, value = args[:4]
    heads, head_size = query.shape[0] * query.shape[1], query.shape[3]
    queries = _rounded_up(query.shape[2], 128)
    per_query = 1 if query.dtype is torch.float32 else 1 + _rounded_up(head_size, 32)
    size_bytes = heads * queries * per_query * torch.float32.itemsize
    if key.shape[1] != query.shape[1]:
        size_bytes += heads * key.shape[2] * (head_size + value.shape[3]) * key.itemsize
    return int(size_bytes)


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


_PRODUCTS_WITHOUT_FORMULA = {
    "_int_mm", "_weight_int4pack_mm", "_weight_int8pack_mm", "gemm_4bit", "gemv_4bit", "int8_linear_matmul",
}  # fmt: skip
"""Products of matrices whose first argument has their rows."""


def floating_point_operations(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> int:
    """Count operations by registered formulas (`torch.utils.flop_counter`).

    Without one, an operator of torch counts one per output element, and an operator of a library counts none. Of causal
    attention the blocks of pairs are counted that its kernel computes.
    """
    packet = operator.overloadpacket
    formula = FORMULAS.get(packet) or flop_formulas().get(packet)
    if formula is not None:
        with no_dispatch():  # a formula may read lengths from a tensor with data
            operations = int(formula(*with_all_heads(operator, args), **kwargs, out_val=output))
        return round(computed_share(operator, args, kwargs) * operations)
    name = operator_name(operator)
    if name in (LAYER, LAYER_BACKWARD):
        return lstm_operations(name, args)
    if name == GROUPED_PRODUCT:
        return _grouped_operations(*args[:2])
    if name in _PRODUCTS_WITHOUT_FORMULA:
        return 2 * int(output.numel()) * int(args[0].shape[-1])
    if not is_of_torch(str(operator)):
        return 0
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first.numel() if isinstance(first, Tensor) else 0


def _grouped_operations(left: Tensor, right: Tensor) -> int:
    """Count a grouped product's operations: each row or step in depth is in one group, whatever the offsets."""
    groups = left.shape[0] if left.dim() == right.dim() == 3 else 1
    return int(2 * groups * left.shape[-2] * left.shape[-1] * right.shape[-1])


_FILL_IN_PLACE = {
    f"{name}Backward{number}"
    for name in ("Clamp", "ClampMax", "ClampMin", "Fmax", "Fmin", "Maximum", "Minimum")
    for number in (0, 1)
}
"""Autograd's nodes that fill in place what they have just made, if no tensor is of a subclass.

Source: ``tools/autograd/derivatives.yaml``.
"""


def in_node(operator: OpOverload, node: str) -> OpOverload:
    """Return an autograd node's operator on tensors with data, in place if it differs on traced tensors."""
    if node in _FILL_IN_PLACE and operator is torch.ops.aten.masked_fill.Scalar:
        return torch.ops.aten.masked_fill_.Scalar
    return operator


def as_in_plain_pytorch(operator: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments for which an operator computes in a step what it does in plain PyTorch, bit for bit.

    On the CPU dropout's gradient is a product with a mask in the activation's precision, to which the scale is rounded.
    Of oneDNN's LSTM, the last argument is whether it keeps a workspace.
    """
    if operator is torch.ops.aten.mkldnn_rnn_layer.default:
        return *args[:-1], torch.is_grad_enabled()
    if operator is not torch.ops.aten.native_dropout_backward.default or args[0].device.type != "cpu":
        return args
    with no_dispatch():
        scale = torch.full((), args[2], dtype=args[0].dtype).item()
    return *args[:2], scale
