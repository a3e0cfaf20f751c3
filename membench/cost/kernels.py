"""The work of an operator's kernels on a GPU: products of matrices, and bytes that are really moved.

Sizes and layouts come from a task's call. A task without one, as in a paper's framework or in the update of the
weights, is taken by its kind, contiguous.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from math import gcd, prod

import torch

from membench.core.graph.call import Call, Value, values_in
from membench.core.graph.convolution import Convolution
from membench.core.graph.fused_calls import BATCH_NORMS, fused_calls_of
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import GradientOf, Kind, Task
from membench.core.libraries.torch_internals import is_of_torch
from membench.cost.attention import efficient_kernel
from membench.cost.fused_calls import FusedKernel, program_kernels
from membench.cost.gathers import touched_bytes
from membench.cost.layouts import conversions, gap_copies_bytes
from membench.cost.loads import load_bytes
from membench.cost.products import Product


class Family(StrEnum):
    """Kernels that reach about the same fraction of a device's rates."""

    PRODUCT = "product"
    ATTENTION = "fused attention"
    CONVOLUTION = "convolution"
    GROUPED = "grouped convolution"
    NARROW = "narrow grouped convolution"  # for which cuDNN has kernels of its own
    DEPTHWISE = "depthwise convolution"
    NORMALIZATION = "normalization"
    ELEMENTWISE = "elementwise"
    COPY = "copy"  # reads or writes memory in another order than the other
    REDUCTION = "reduction"
    DEQUANTIZATION = "dequantization"


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernels of one operator call.

    Attributes:
        precision: format of the factors of its products.
        operations: floating-point operations, by the operator's definition.
        product: what it multiplies; None where that is not known, or where it does not multiply matrices.
        moved_bytes: read and written, each pass over the memory counted.
        layout_bytes: moved in addition to bring activations into the layout of tensor cores and back.
        is_weight_gradient: whether it is a convolution's weight gradient.
        is_pointwise: a convolution of 1 x 1 that reads every pixel.
        channels_last: the layout of a convolution's or a normalization's activations.
        attention_kernel: kernel of memory-efficient attention, see `efficient_kernel`; empty: another.
        load_bytes: what a thread loads each time that it waits; 0: it has many loads under way, see `load_bytes`.
        blocks: the most thread blocks that it has, one for each channel; None: as many as fill the device.
        aligned_bytes: power of 2, at most 16, of which each row of the factors and of the result begins at a multiple,
            in bytes.
    """

    family: Family
    precision: Precision
    moved_bytes: int
    operations: int = 0
    product: Product | None = None
    layout_bytes: int = 0
    is_weight_gradient: bool = False
    is_pointwise: bool = False
    channels_last: bool = False
    attention_kernel: str = ""
    load_bytes: float = 0.0
    blocks: int | None = None
    aligned_bytes: int = 16


_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
"""They move nothing."""
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "_int_mm"}
_PRODUCTS_WITH_SCALES = {"_scaled_mm", "int8_linear_matmul"}
"""Whose factors come first."""
_TRANSPOSED = {"int8_linear_matmul"}
"""Products whose second factor has a row for each column of the result."""
_UNKNOWN_PRODUCTS = {"convolution", "convolution_backward", "gemm_4bit", "gemv_4bit", "_weight_int4pack_mm",
                     "_weight_int8pack_mm"}  # fmt: skip
"""Convolutions without geometry here, of one or three dimensions, or transposed; products with a packed weight."""
_COPIES = {"cat", "stack", "clone", "index", "index_put", "index_select", "gather", "roll", "flip", "repeat",
           "slice_backward", "select_backward", "slice_scatter", "constant_pad_nd", "im2col", "col2im", "embedding",
           "embedding_dense_backward", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_reduce",
           "index_fill", "take", "put", "masked_select", "unfold_backward", "as_strided"}  # fmt: skip
"""In place or not."""
_BUFFER_COPIES = {"_foreach_copy_", "split_with_sizes_copy", "_chunk_cat"}
"""Into and out of the buffers of collectives: they move what their blocks hold."""
_REDUCTIONS = {"sum", "mean", "var", "var_mean", "std", "norm", "linalg_vector_norm", "amax", "max", "min", "prod"}
_DEQUANTIZATIONS = {"dequantize_4bit", "dequantize_blockwise"}  # bitsandbytes
_PASSES = {
    # statistics first, then the result: the input is read twice
    "native_batch_norm": 3 / 2,
    "cudnn_batch_norm": 3 / 2,
    "native_group_norm": 3 / 2,
    # sums over both arguments first, then the gradient: both are read twice
    "native_batch_norm_backward": 5 / 3,
    "cudnn_batch_norm_backward": 5 / 3,
    "native_group_norm_backward": 5 / 3,
    # one kernel for the input's gradient, and one for the weights'
    "native_layer_norm_backward": 5 / 3,
}
"""Passes over the memory, over one for each argument and result."""
_NORMALIZATIONS = {*_PASSES, "native_layer_norm", "_softmax", "_softmax_backward_data", "_log_softmax",
                   "_log_softmax_backward_data"}  # fmt: skip
_FAMILIES = {
    **dict.fromkeys((Kind.CONVOLUTION, Kind.LINEAR), Family.PRODUCT),
    Kind.ATTENTION: Family.ATTENTION,
    **dict.fromkeys((Kind.BATCH_NORM, Kind.NORMALIZATION), Family.NORMALIZATION),
}
_NARROW_WIDTHS = (4, 8, 16, 32)
_OF_8_BITS = (Precision.FP8, Precision.INT8)
_HALVES = {torch.float16: Precision.FP16, torch.bfloat16: Precision.BF16}


class SameKernels:
    """A task with a call, equal to others whose kernels depend on the same: the same call repeated."""

    __slots__ = ("key", "task")

    def __init__(self, task: Task) -> None:
        assert task.call is not None
        self.task = task
        self.key = (
            id(task.call.like or task.call),  # a call's own hash takes longer than its kernels
            id(task.convolution),
            (task.moved_bytes, task.operations, task.host_bytes),
            (task.precision, task.gradient_of, task.is_compiled),
            tuple([block in task.creates for block in task.writes]),
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, SameKernels) else NotImplemented


def kernels_of(task: Task) -> tuple[Kernel, ...]:
    """Return the kernels of a task: those of its program, else one, and further ones of a convolution.

    Both gradients of a convolution have a kernel each, and cuDNN leaves a bias and its gradient to kernels of their
    own. Images with gaps are copied first.
    """
    if (program := fused_calls_of(task.call)) is not None:
        return tuple(map(partial(_fused_kernel, task.precision), program_kernels(program)))
    if task.call is None or task.call.operator.split(".")[1] in _BUFFER_COPIES:
        return (_kernel_by_kind(task),)
    further = (*_kernels_of_bias(task, task.call), *_copies(task, task.call))
    if not computes_both_gradients(task):
        return (_kernel_by_call(task, task.call), *further)
    upstream, images, weight = (value.moved_bytes for value in values_in(task.call.args[:3]))
    moved_bytes = upstream + images + weight  # a gradient is as large as what it is of
    of_both = (
        _kernel_by_call(replace(task, gradient_of=gradient_of, moved_bytes=moved_bytes), task.call)
        for gradient_of in (GradientOf.WEIGHT, GradientOf.DATA)
    )
    return (*of_both, *further)


def _kernels_of_bias(task: Task, call: Call) -> tuple[Kernel, ...]:
    """Return the kernel that adds a convolution's bias to its output, or that sums its gradient; none without a bias.

    Depthwise kernels add it themselves, and compiled code in a kernel that there is in any case.
    """
    c = task.convolution
    if c is None or 1 < c.groups == c.input_channels or task.is_compiled:
        return ()
    first, _, bias = call.args[:3]
    if call.operator == "aten.convolution.default":
        moved_bytes = 0 if bias is None else 2 * sum(value.moved_bytes for value in values_in(call.outputs))
        return (Kernel(Family.ELEMENTWISE, task.precision, moved_bytes),) if moved_bytes else ()
    if call.operator == "aten.convolution_backward.default" and call.args[-1][2]:
        return (Kernel(Family.REDUCTION, task.precision, first.moved_bytes),)
    return ()


def _copies(task: Task, call: Call) -> tuple[Kernel, ...]:
    moved_bytes = gap_copies_bytes(call)
    return (Kernel(Family.COPY, task.precision, moved_bytes),) if moved_bytes else ()


def launches(task: Task) -> int:
    """Return how many kernels a task starts."""
    program = fused_calls_of(task.call)
    return task.launches if program is None else len(program_kernels(program))


def priced_by_bytes(tasks: Iterable[Task]) -> tuple[str, ...]:
    """Return the libraries' operators, ``"library.name"``, with unknown operations, in the order of their first use."""
    priced = (task for task in tasks if not (task.operations or task.collective))
    calls = [task.call for task in priced if task.call is not None]
    names = (call.operator.rpartition(".")[0] for call in calls if not is_of_torch(call.operator))
    return tuple(dict.fromkeys(name for name in names if not name.startswith("membench.")))


def computes_both_gradients(task: Task) -> bool:
    """Return whether a task is the whole backward pass of a convolution, as plain PyTorch calls it."""
    if task.call is None or task.convolution is None or not task.call.operator.endswith("_backward.default"):
        return False
    of_images, of_weight, _ = task.call.args[-1]
    return bool(of_images and of_weight)


def _kernel_by_call(task: Task, call: Call) -> Kernel:
    name = call.operator.split(".")[1]
    if name in _ALLOCATIONS:
        return Kernel(Family.ELEMENTWISE, task.precision, 0)
    values = values_in((call.args, *(value for _, value in call.kwargs), call.outputs))
    if (moved_bytes := touched_bytes(call)) is None:
        moved_bytes = task.moved_bytes + _updated_bytes(task, values)
    precision = _precision(task, values)
    if task.convolution is not None:
        return _convolution(task, task.convolution, values, precision, moved_bytes)
    product_kernel = partial(Kernel, Family.PRODUCT, precision, moved_bytes, task.operations)
    if (product := _product_of(name, call)) is not None:
        aligned_bytes = min(map(_aligned_bytes, values_in((call.args, call.outputs))))
        return product_kernel(product, aligned_bytes=aligned_bytes)
    if "attention" in name:
        kind = efficient_kernel(name, values)
        return Kernel(Family.ATTENTION, precision, moved_bytes, task.operations, attention_kernel=kind)
    if name in _UNKNOWN_PRODUCTS:
        return product_kernel(layout_bytes=2 * sum(conversions(call)))
    if name in _DEQUANTIZATIONS:
        return Kernel(Family.DEQUANTIZATION, precision, moved_bytes)
    if not is_of_torch(call.operator):  # with the operations of its formula, if it has one
        return product_kernel()
    if name in _NORMALIZATIONS:
        if call.operator in BATCH_NORMS and not call.args[5]:  # by statistics that are known
            return Kernel(Family.ELEMENTWISE, precision, moved_bytes)
        return _normalization(name, precision, moved_bytes, call, values)
    if name in _REDUCTIONS:
        return Kernel(Family.REDUCTION, precision, moved_bytes)
    family = Family.COPY if name.removesuffix("_") in _COPIES or _reorders(values) else Family.ELEMENTWISE
    return Kernel(family, precision, moved_bytes, load_bytes=0.0 if _is_channels_last(values) else load_bytes(call))


def _normalization(name: str, precision: Precision, moved_bytes: int, call: Call, values: list[Value]) -> Kernel:
    """Return a normalization's kernels; batch norm's have a thread block for each channel unless these lie together."""
    passed_bytes = round(_PASSES.get(name, 1) * moved_bytes)
    if _is_channels_last(values):
        return Kernel(Family.NORMALIZATION, precision, passed_bytes, channels_last=True)
    blocks = values[0].shape[1] if "batch_norm" in name else None
    return Kernel(Family.NORMALIZATION, precision, passed_bytes, load_bytes=load_bytes(call), blocks=blocks)


def _aligned_bytes(value: Value) -> int:
    """Return of how many bytes each row of a matrix begins at a multiple, at most 16."""
    steps = [step for size, step in zip(value.shape, value.stride, strict=True) if size > 1 and step > 1]
    return gcd(16, *(step * value.dtype.itemsize for step in steps))


def _fused_kernel(precision: Precision, kernel: FusedKernel) -> Kernel:
    values = [*kernel.reads, *kernel.writes]
    family = Family.REDUCTION if kernel.reduces_across else Family.COPY if _changes_rows(values) else Family.ELEMENTWISE
    return Kernel(family, precision, kernel.moved_bytes)


def _kernel_by_kind(task: Task) -> Kernel:
    if task.convolution is not None:
        return _convolution(task, task.convolution, [], task.precision, task.moved_bytes)
    family = _FAMILIES.get(task.kind, Family.ELEMENTWISE)
    return Kernel(family, task.precision, task.moved_bytes, task.operations)


def _updated_bytes(task: Task, values: list[Value]) -> int:
    """Return the bytes written to arguments in place, of which a task's `moved_bytes` has only the reading."""
    updated = set(task.writes) - set(task.creates)
    return sum({value.block: value.moved_bytes for value in values if value.block in updated}.values())


def _precision(task: Task, values: list[Value]) -> Precision:
    """Return the format of the factors: half precision if the task was not captured with its own."""
    if task.precision in _OF_8_BITS:
        return task.precision
    halves = (_HALVES[value.dtype] for value in values if value.dtype in _HALVES)
    return next(halves, task.precision)


def _product_of(name: str, call: Call) -> Product | None:
    """Return the geometry of a product of matrices; None for another operator."""
    if name in _PRODUCTS:
        return _product(*values_in(call.args)[-2:])
    if name in _PRODUCTS_WITH_SCALES:
        return _product(*values_in(call.args)[:2], is_transposed=name in _TRANSPOSED)
    return _grouped_product(call) if name == "_grouped_mm" else None


def _product(left: Value, right: Value, *, is_transposed: bool = False) -> Product:
    *batch, rows, depth = left.shape
    columns = right.shape[0 if is_transposed else -1] if len(right.shape) > 1 else 1
    return Product(prod(batch), rows, columns, depth)


def _grouped_product(call: Call) -> Product:
    """Return a product for each group, of equal sizes, as which rows are in a group depends on data (a router)."""
    left, right, *offsets = values_in((call.args, tuple(value for _, value in call.kwargs)))
    groups = (offsets or [left])[0].shape[0]
    rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    match len(left.shape), len(right.shape):
        case 2, 3:
            rows = -(-rows // groups)
        case 3, 2:
            columns = -(-columns // groups)
        case 2, 2:
            depth = -(-depth // groups)
    return Product(groups, rows, columns, depth)


def _convolution(task: Task, c: Convolution, values: list[Value], precision: Precision, moved_bytes: int) -> Kernel:
    """Return an implicit product of matrices (Chetlur et al. 2014), one for each group."""
    inputs, outputs, area = c.input_channels // c.groups, c.output_channels // c.groups, prod(c.kernel_size)
    pixels = c.images * prod(c.output_size)
    if task.gradient_of is GradientOf.WEIGHT:
        product = Product(c.groups, outputs, inputs * area, pixels)
    elif task.gradient_of is GradientOf.DATA:  # each stride's share of the filter reaches a pixel
        product = Product(c.groups, c.images * prod(c.input_size), inputs, max(1, outputs * area // prod(c.stride)))
    else:
        product = Product(c.groups, pixels, outputs, inputs * area)
    channels_last = _is_channels_last(values)
    family = _convolution_family(c, channels_last)
    activations = c.images * (c.input_channels * prod(c.input_size) + c.output_channels * prod(c.output_size))
    layout_bytes = 0 if channels_last else 2 * c.itemsize * activations
    return Kernel(
        family,
        precision,
        moved_bytes,
        2 * pixels * c.output_channels * inputs * area,
        product,
        layout_bytes,
        task.gradient_of is GradientOf.WEIGHT,
        c.kernel_size == c.stride == (1, 1),
        channels_last,
    )


def _convolution_family(c: Convolution, channels_last: bool) -> Family:
    """Return the kernels that run a convolution.

    For channels last, cuDNN has kernels for groups of as many inputs as outputs, 4, 8, 16 or 32, as ResNeXt has them.
    All other groups of that layout run many times slower.
    """
    inputs, outputs = c.input_channels // c.groups, c.output_channels // c.groups
    if c.groups == 1:
        return Family.CONVOLUTION
    if inputs == 1:
        return Family.DEPTHWISE
    is_narrow = inputs == outputs and inputs in _NARROW_WIDTHS and c.dilation == (1, 1) and c.itemsize == 2
    return Family.NARROW if is_narrow and channels_last else Family.GROUPED


def _is_channels_last(values: list[Value]) -> bool:
    """Return whether the largest four-dimensional value has its channels next to each other."""
    maps = [value for value in values if len(value.shape) == 4]
    if not maps:
        return False
    largest = max(maps, key=lambda value: prod(value.shape))
    return largest.stride[1] == 1 and largest.shape[1] > 1


def _reorders(values: list[Value]) -> bool:
    """Return whether two large values of one shape lie in memory in different orders."""
    large = [value for value in values if value.moved_bytes == prod(value.shape) * value.dtype.itemsize]
    if len(large) < 2:
        return False
    size = max(prod(value.shape) for value in large)
    orders = {_order(value) for value in large if prod(value.shape) == size}
    return len(orders) > 1


def _changes_rows(values: list[Value]) -> bool:
    """Return whether large values of one size differ in whether the elements along their last axis lie together."""
    size = max((prod(value.shape) for value in values), default=0)
    steps = [
        next((step for length, step in zip(v.shape[::-1], v.stride[::-1], strict=True) if length > 1), 1)
        for v in values
        if prod(v.shape) == size
    ]
    return len({step == 1 for step in steps}) > 1


def _order(value: Value) -> tuple[int, ...]:
    counted = [axis for axis, size in enumerate(value.shape) if size > 1]
    return tuple(sorted(counted, key=lambda axis: -value.stride[axis]))
