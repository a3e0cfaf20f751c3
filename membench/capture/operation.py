"""An operator call without the blocks of its tensors: the same for all calls with equal layouts.

A deep network repeats few distinct calls. The shape functions, which would take most of a capture's time, run once for
each distinct call.
"""

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from membench.capture.operators import aten
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Output, Outputs, Value, values_in
from membench.core.graph.convolution import Convolution
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import GradientOf, Kind
from membench.core.libraries.torch_fake_tensors import fake_tensor
from membench.core.libraries.torch_internals import FakeTensor, FakeTensorMode, no_dispatch, storage_address


class Layout(NamedTuple):
    """A tensor's layout in its storage; strides and offset in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    device: torch.device

    def fake_tensor(
        self, mode: FakeTensorMode, *, view_of: Tensor | None = None, requires_grad: bool = False
    ) -> Tensor:
        """Return a fake tensor.

        Args:
            view_of: the tensor whose storage it shares; None: it starts a new storage.
        """
        return fake_tensor(
            mode, self.shape, self.stride,
            dtype=self.dtype, device=self.device, view_of=view_of, offset=self.offset, requires_grad=requires_grad,
        )  # fmt: skip


def layout_of(tensor: Tensor) -> Layout:
    """Return a tensor's layout."""
    offset = int(tensor.storage_offset())
    return Layout(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), offset, tensor.device)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator on arguments of given layouts.

    Attributes:
        operator: with its overload, ``"aten.relu_.default"``.
        operations: floating-point operations.
        shape_only, view_of: positions of arguments; see `aten`.
        written: positions and names of arguments.
        gradient_of: in the backward pass.
        outputs: for each output its layout, the position of the argument that is returned, or None if it is not a
            tensor; None in place of all if the outputs cannot be described so.
        is_tuple: the operator returns a tuple of outputs.
        numbers: names of arguments that are numbers in place of tensors.
        unread_bytes: size of arguments that are written without being read.
    """

    operator: str
    name: str
    kind: Kind
    operations: int
    shape_only: tuple[int, ...]
    written: tuple[int | str, ...]
    view_of: int | None
    gradient_of: GradientOf
    workspace_bytes: int
    random: bool
    convolution: Convolution | None
    outputs: tuple[Layout | int | None, ...] | None
    is_tuple: bool
    numbers: tuple[str, ...]
    unread_bytes: int

    def moved_bytes(self, values: tuple[Any, ...]) -> int:
        """Return what it reads and what it makes; what it writes in place it reads, except `unread_bytes`."""
        return sum(value.moved_bytes for value in values_in(values)) - self.unread_bytes

    def precision(self, values: Sequence[Value], tf32: Set[Kind]) -> Precision:
        """Return the precision in which it computes.

        Args:
            values: that it reads and makes.
            tf32: kinds of products whose factors are rounded from single precision to TF32.
        """
        if self.kind is Kind.LINEAR and values[0].dtype is torch.int8:
            return Precision.INT8
        dtype = next((value.dtype for value in values if value.dtype.is_floating_point), torch.float32)
        is_rounded = self.kind in tf32 and dtype is torch.float32
        return Precision.TF32 if is_rounded else Precision.of_dtype(dtype)

    def run_again(self, mode: FakeTensorMode, args: tuple[Any, ...]) -> Any:
        """Return what the operator returns for other arguments of the same layouts."""
        assert self.outputs is not None
        base = None if self.view_of is None else args[self.view_of]
        outputs = tuple([
            item.fake_tensor(mode, view_of=base) if isinstance(item, Layout) else item if item is None else args[item]
            for item in self.outputs
        ])  # fmt: skip
        return outputs if self.is_tuple else outputs[0]


_BY_LAYOUT = frozenset({"aten", "bitsandbytes"})
"""Namespaces of operators that depend on layouts alone; other libraries' kernels may depend on a mask."""


def call_key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
    """Return the key by which calls share an operation; None if they cannot.

    They can for operators that depend on layouts alone, on fake tensors whose values are unknown even to their mode.
    """
    if func.namespace not in _BY_LAYOUT:
        return None
    arguments = _key((args, *kwargs.items()))
    return None if arguments is None else (func, arguments)


def _key(argument: Any) -> Hashable | None:
    if isinstance(argument, Tensor):
        is_known = isinstance(argument, FakeTensor) and argument.constant is None
        return layout_of(argument) if is_known and not _is_lazy(argument) else None
    if isinstance(argument, list | tuple):
        keys = tuple(map(_key, argument))
        return None if None in keys else keys
    return type(argument), argument  # 1 and 1.0 are equal, and promote differently


def operation_of(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, created: Sequence[bool]
) -> Operation:
    """Return the operation of a call that has run.

    Args:
        created: for each output, whether it is a tensor in a new storage.
    """
    return Operation(
        operator=str(func),
        name=aten.operator_name(func),
        kind=aten.kind_of(func),
        operations=aten.floating_point_operations(func, args, kwargs, output),
        shape_only=aten.shape_only_arguments(func, args),
        written=aten.written_arguments(func, args, kwargs),
        view_of=aten.viewed_argument(func, args),
        gradient_of=aten.gradient_of(func, args),
        workspace_bytes=aten.workspace_bytes(func, args),
        random=aten.is_random(func, args),
        convolution=aten.convolution_of(func, args, output),
        outputs=None if isinstance(output, list) else _outputs(func, args, as_list(output), created),
        is_tuple=isinstance(output, tuple),
        numbers=aten.numbers(func, args),
        unread_bytes=aten.unread_bytes(func, args),
    )


def _outputs(
    func: Any, args: tuple[Any, ...], outputs: list[Any], created: Sequence[bool]
) -> tuple[Layout | int | None, ...] | None:
    is_view = aten.viewed_argument(func, args) is not None
    found: list[Layout | int | None] = []
    for output, is_new in zip(outputs, created, strict=True):
        same = [position for position, argument in enumerate(args) if argument is output]
        if output is None:
            found.append(None)
        elif not isinstance(output, FakeTensor) or output.constant is not None or _is_lazy(output):
            return None
        elif same:
            found.append(same[0])
        elif is_view or (is_new and _fills_storage(output)):
            found.append(layout_of(output))
        else:
            return None
    return tuple(found)


def _is_lazy(tensor: Tensor) -> bool:
    """Return whether a tensor is conjugated or negated when it is read, which a layout does not contain."""
    return tensor.is_conj() or tensor.is_neg()


def _fills_storage(tensor: Tensor) -> bool:
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    elements = 1 + reach if tensor.numel() else 0
    return not tensor.storage_offset() and tensor.untyped_storage().nbytes() == elements * tensor.itemsize


def without_values(tensor: Tensor, mode: FakeTensorMode, device: torch.device | None) -> Tensor:
    """Return a fake tensor in the layout of a kernel's result, in a storage of the same size.

    Args:
        device: where it claims to be; None: where the tensor is.
    """
    layout = layout_of(tensor)._replace(device=device or tensor.device)
    elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    memory = layout._replace(shape=(elements,), stride=(1,), offset=0).fake_tensor(mode)
    return layout.fake_tensor(mode, view_of=memory)


def with_layout_changed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], layer: str) -> Any:
    """Change the shape or strides of a tensor in place; not a task, because each later call holds its layouts.

    Raises:
        UnsupportedModel: the tensor gets other memory; names the layer.
    """
    before = _memory_of(args[0])
    output = func(*args, **kwargs)
    if _memory_of(args[0]) != before:
        raise UnsupportedModel(layer, f"{func} replaces a tensor's memory", "make a new tensor instead")
    return output


def _memory_of(tensor: Tensor) -> tuple[int, int]:
    return storage_address(tensor.untyped_storage()), tensor.untyped_storage().nbytes()


def as_list(output: Any) -> list[Any]:
    """Return an operator's one or several outputs as a list."""
    return list(output) if isinstance(output, tuple | list) else [output]


def as_seen(output: Any, seen: Outputs) -> Any:
    """Return outputs of a shape function in the layouts that a kernel's outputs were seen to have."""
    tensors = [
        claimed if real is None else _in_layout(claimed, real)
        for claimed, real in zip(as_list(output), seen, strict=True)
    ]
    return type(output)(tensors) if isinstance(output, tuple | list) else tensors[0]


def _in_layout(tensor: Tensor, output: Output) -> Tensor:
    memory = tensor.new_empty(output.size_bytes // output.dtype.itemsize, dtype=output.dtype)
    return memory.as_strided(output.shape, output.stride, output.offset)


def with_strides_of_views(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, mode: FakeTensorMode
) -> Any:
    """Return the views that an operator returns with the strides that it gives tensors with data.

    Fake tensors give dimensions with one element other strides, by which kernels choose how they compute.
    """
    at = aten.viewed_argument(func, args)
    if at is None or not isinstance(args[at], FakeTensor) or _is_lazy(args[at]):
        return output
    if sum(isinstance(each, Tensor) for each in args) > 1 or any(each.constant is not None for each in as_list(output)):
        return output
    layout, base = layout_of(args[at]), args[at]
    with no_dispatch():
        meta = torch.empty(0, dtype=layout.dtype, device="meta")
        meta.set_(base.untyped_storage(), layout.offset, layout.shape, layout.stride)
        views = as_list(func(*args[:at], meta, *args[at + 1 :], **kwargs))
    corrected = [
        claimed
        if claimed.stride() == view.stride()
        else layout_of(view)._replace(device=layout.device).fake_tensor(mode, view_of=base)
        for claimed, view in zip(as_list(output), views, strict=True)
    ]
    return type(output)(corrected) if isinstance(output, tuple | list) else corrected[0]
