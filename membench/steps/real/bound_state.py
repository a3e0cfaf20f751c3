"""The caller's tensors that a step computes on, and what a call passes: bound to a backend, and checked."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from membench.backends.tensor_backend import TensorBackend
from membench.capture.capture import CapturedStep
from membench.core.errors import MembenchError, ModuleChanged, ShapeMismatch
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.libraries.torch_contexts import attention_switches, autocast_dtype
from membench.core.libraries.transforms import check_no_transform
from membench.core.step.arguments import ExpectedArguments, is_dense
from membench.core.step.stored import stored_buffers, stored_weights

_SHAPE = attrgetter("shape")
_Memory = tuple[int, torch.Size, tuple[int, ...]]
"""A tensor's address, shape and strides."""


class BoundState:
    """Weights, buffers and constants of a captured step, each bound to its block again where it has moved in memory.

    Args:
        graph: whose blocks they are.
        backend: backend of the same graph.
        captured: the step.
        module: as it was captured, placed for the backend.
        others: further tensors of the caller by block.

    Attributes:
        tensors: all of them by block.
    """

    def __init__(
        self,
        graph: TaskGraph,
        backend: TensorBackend,
        captured: CapturedStep,
        module: nn.Module,
        others: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> None:
        self._graph = graph
        self._backend = backend
        weights, buffers = stored_weights(module), stored_buffers(module)
        self.tensors: dict[int, Tensor] = {
            **{block: weights[name] for name, block in captured.weights.items()},
            **{block: buffers[name] for name, block in captured.buffers.items()},
            **{block: backend.place(block, tensor) for block, tensor in captured.constants.items()},
            **others,
        }
        self._captured_layouts = {block: _describe_layout(tensor) for block, tensor in self.tensors.items()}
        self._bound: dict[int, _Memory] = {}

    def bind(self, others: Mapping[int, Tensor] = MappingProxyType({})) -> bool:
        """Bind the state and others of the caller's tensors; return whether any has moved since the last call.

        Raises:
            ModuleChanged: a tensor has another shape, layout or dtype.
        """
        tensors = {**self.tensors, **others}
        memory = dict(zip(tensors, _memory_of(tensors.values()), strict=True))
        if memory == self._bound:
            return False
        for block, tensor in tensors.items():
            if self._bound.get(block) != memory[block]:
                self._check_layout(block, tensor)
                self._backend.bind(block, tensor.detach())
        self._bound = memory
        return True

    def unbind(self, blocks: Iterable[int]) -> None:
        """Release tensors of these blocks."""
        for block in blocks:
            self._backend.unbind(block)
            self._bound.pop(block, None)

    def forget(self) -> None:
        """Bind all tensors at the next call: the backend has released them."""
        self._bound.clear()

    def _check_layout(self, block: int, tensor: Tensor) -> None:
        now, captured = _describe_layout(tensor), self._captured_layouts.get(block)
        if captured and captured != now:
            name = self._graph.blocks[block].name
            raise ModuleChanged(f"{name!r} is {now}, but was {captured} when the step was captured; compile again")


def exchange_buckets(graph: TaskGraph, backend: TensorBackend) -> dict[int, Tensor]:
    """Return memory for the blocks in which gradients are exchanged, which last from step to step."""
    results = {value.block for _, value in graph.gradients if value}
    results |= {graph.loss.block} if graph.loss else set()
    return {
        block.index: torch.empty(block.size_bytes, dtype=torch.uint8, device=backend.device)
        for block in graph.blocks
        if block.role is Role.ACCUMULATED and block.index not in results
    }


def check_autocast(device_type: str, precision: Precision | None, captured: Mapping[str, torch.dtype | None]) -> None:
    """Refuse a call within autocast that the capture was not within, or outside of it.

    Args:
        captured: dtypes of autocast by type of device, None where it was off.

    Raises:
        MembenchError: the call would not compute what the module computes there.
    """
    now, then = autocast_dtype(device_type), captured[device_type]
    own = precision.autocast_dtype if precision else None
    if now != then and (own is None or now not in (None, own)):
        raise MembenchError(
            f"the step is called with autocast to {now} and was captured with autocast to {own or then}; call it as it "
            "was compiled, or compile it with precision='amp_bf16' or 'amp_fp16'"
        )


def check_attention(captured: tuple[bool, ...]) -> None:
    """Refuse a call where the program allows other kernels of attention than at the capture.

    Raises:
        MembenchError: the call would not compute what the module computes there.
    """
    if attention_switches() != captured:
        raise MembenchError(
            "the program allows other kernels of attention now than when the step was captured (torch.nn.attention."
            "sdpa_kernel, torch.backends.cuda.enable_*_sdp); call the step as it was compiled, or compile it again"
        )


def check_arguments(expected: ExpectedArguments, given: Any) -> list[Any]:
    """Check arguments against the captured ones; return their leaves in the captured order and memory layout.

    Raises:
        ShapeMismatch: their number or nesting differs, or a shape, dtype, device or value.
        MembenchError: one requires a gradient, or the call is within a transform of torch.
    """
    leaves = expected.leaves_of(given)
    check_untransformed(each for each in leaves if isinstance(each, Tensor))
    for position, (captured, argument) in enumerate(zip(expected.leaves, leaves, strict=True)):
        if _describe(captured) != _describe(argument):
            raise ShapeMismatch(
                f"{expected.place(position)} is {_describe_briefly(argument)}; the step takes {_describe(captured)}; "
                + _remedy(captured, argument)
            )
        if isinstance(argument, Tensor):
            if argument.requires_grad and torch.is_grad_enabled():
                raise MembenchError(
                    f"{expected.place(position)} requires a gradient, which the step does not compute; detach it, or "
                    "move the computation of it into the module"
                )
            leaves[position] = in_layout_of(captured, argument)
    return leaves


def check_untransformed(tensors: Iterable[Tensor]) -> None:
    """Refuse a compiled step within a transform of torch; see `check_no_transform`."""
    check_no_transform("a compiled step", "call the module and its loss there", tensors)


def in_layout_of(captured: Tensor, given: Tensor) -> Tensor:
    """Return a tensor as it is, or a copy with the strides of the captured one where it has others."""
    if given.stride() == captured.stride() and not (given.is_conj() or given.is_neg()):
        return given
    return torch.empty_like(captured).copy_(given)


def _remedy(captured: Any, argument: Any) -> str:
    if isinstance(captured, Tensor) and isinstance(argument, Tensor) and is_dense(argument):
        if captured.device != argument.device:
            return "move it there"
        if captured.dtype != argument.dtype:
            return f"convert it with .to({captured.dtype}), or compile a step for that dtype"
        return (
            "compile a step for each shape, or leave out a last batch that is smaller, "
            "or use shapes='any' or membench.wrap"
        )
    return "pass the same kind of value, or compile a step for it"


def _describe_briefly(argument: Any) -> str:
    text = _describe(argument)
    return text if isinstance(argument, Tensor) or len(text) < 60 else f"a {type(argument).__name__}"


def _memory_of(tensors: Collection[Tensor]) -> Iterator[_Memory]:
    """Return where tensors lie; loops in C, because each step checks all tensors of a module."""
    return zip(map(Tensor.data_ptr, tensors), map(_SHAPE, tensors), map(Tensor.stride, tensors), strict=True)


def _describe_layout(tensor: Tensor) -> str:
    return f"{_describe(tensor)} with strides {tensor.stride()}"


def _describe(argument: Any) -> str:
    if isinstance(argument, Tensor):
        if not is_dense(argument):
            return "a sparse or nested tensor"
        return f"a {argument.device.type} tensor of shape {tuple(argument.shape)} and {argument.dtype}"
    return repr(argument)
