"""Values of a real batch, for what depends on them: boolean masks, `nonzero`, `item`, a detector's boxes.

A trace runs on tensors without data. Where an operator's result depends on values, the tasks recorded so far are run on
the CPU, on the module's weights and buffers and on the batch as they are, and then the operator. Nothing runs in a
trace that asks for no value.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from membench.capture.layers import Layers
from membench.capture.lifetimes import Lifetimes
from membench.capture.values.known_values import evaluate, run_call
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Call, Value, values_in
from membench.core.graph.task_graph import Task
from membench.core.libraries.random_operators import DEFAULT_GENERATOR
from membench.core.libraries.torch_internals import FakeTensor, no_dispatch, tree_leaves, tree_map_only


class Trace(Protocol):
    """What is read of a recorder."""

    tasks: list[Task]
    layers: Layers
    constants: dict[int, Tensor]
    made_anew: dict[int, Tensor]
    lifetimes: Lifetimes

    def without_values(self, tensor: Tensor) -> Tensor:
        """Return a tensor with data as the trace goes on with it."""


class RealValues:
    """The contents of a trace's blocks.

    Args:
        trace: that asks for values.

    Attributes:
        were_read: whether a result depended on values.
    """

    def __init__(self, trace: Trace) -> None:
        self.were_read = False
        self._trace = trace
        self._given: dict[int, tuple[Value, Tensor]] = {}
        self._tensors: dict[int, Tensor] = {}
        self._run = 0  # tasks that have run

    def give(self, value: Value, real: Tensor) -> None:
        """Note a tensor of the caller, in its own precision and layout and as the step has it."""
        self._given[value.block] = value, real

    def traced(self, call: Call, written: Sequence[Tensor], error: Exception) -> Any:
        """Return what a call that follows the recorded tasks returns, as the trace goes on with it.

        Args:
            written: arguments that it writes to.
            error: raised if a tensor that the call needs has no data.

        Raises:
            UnsupportedModel: see `result_of`.
        """
        if written:
            return written[0]
        result = self.result_of(call)
        if result is None:
            raise error
        return tree_map_only(Tensor, self._trace.without_values, result)

    def result_of(self, call: Call) -> Any:
        """Return what a call that follows the recorded tasks returns; None: a tensor that it needs has no data.

        Raises:
            UnsupportedModel: an operator does not run on the CPU; names its layer.
        """
        with no_dispatch(), torch.no_grad(), _random_state_kept():
            if (result := self._of_whole_numbers(call)) is not None:
                self.were_read = True
                return result
            pending = self._trace.tasks[self._run :]
            needed = {value.block for task in pending for value in _values_of(task.call)} | _blocks_of(call)
            made = {block for task in pending for block in task.creates}
            if not all(map(self._has, needed - made)):
                return None
            self._run_all(pending)
            for block in _blocks_of(call):
                self._load(block)
            self.were_read = True
            return run_call(call, self._tensors)

    def _of_whole_numbers(self, call: Call) -> Any:
        """Return what a call returns that depends on tokens, labels and masks alone; None: it depends on others too.

        No layer runs for it, so that one with a kernel that only a GPU has may count the targets that are not ignored.
        """
        known = {
            block: _copied(value, real)
            for block, (value, real) in self._given.items()
            if _has_data(real) and not value.dtype.is_floating_point
        }
        return evaluate(call, self._trace.tasks, {**self._trace.made_anew, **known})

    def _run_all(self, pending: Sequence[Task]) -> None:
        last = {block: position for position, task in enumerate(pending) for block in (*task.reads, *task.writes)}
        living = set(self._trace.lifetimes.blocks.values())
        for position, task in enumerate(pending):
            for block in (*task.reads, *task.writes):
                if block not in task.creates:
                    self._load(block)
            self._run_task(task)
            ended = [block for block in {*task.reads, *task.writes} if last[block] == position]
            for block in ended:
                if block not in living and block not in self._given:
                    self._tensors.pop(block, None)
        self._run = len(self._trace.tasks)

    def _run_task(self, task: Task) -> None:
        assert task.call is not None
        try:
            result = run_call(task.call, self._tensors)
        except (NotImplementedError, RuntimeError) as error:
            name = task.call.operator.split(".")[1]
            if name not in _ON_CPU:
                raise UnsupportedModel(
                    self._trace.layers.names[task.layer],
                    f"sizes depend on values, and {task.call.operator}, which is computed on the CPU for them, fails "
                    f"there "
                    f"({str(error).splitlines()[0]})",
                    "choose precision=fp32, or run this layer outside of the step",
                ) from error
            result = _ON_CPU[name](task.call, self._tensors)
        results = result if isinstance(result, tuple | list) else (result,)
        for value, tensor in zip(task.call.outputs, results, strict=False):
            if value is not None:
                self._tensors[value.block] = _in_layout(tensor, value)

    def _has(self, block: int) -> bool:
        """Return whether a block that no pending task makes has contents."""
        if block in self._tensors:
            return True
        if block in self._given:
            return _has_data(self._given[block][1])
        return any(block in group and _has_data(group[block]) for group in self._made())

    def _made(self) -> tuple[Mapping[int, Tensor], ...]:
        return self._trace.constants, self._trace.made_anew

    def _load(self, block: int) -> None:
        """Copy a tensor that was not made by a task: the caller's must not change."""
        if block in self._tensors:
            return
        if block in self._given:
            self._tensors[block] = _copied(*self._given[block])
            return
        made = next(group[block] for group in self._made() if block in group)
        storage = made.untyped_storage().clone()  # a view's offset is one in the whole of it
        self._tensors[block] = torch.empty(0, dtype=made.dtype, device=storage.device).set_(storage)


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Keep the state of torch's generator."""
    state = DEFAULT_GENERATOR.get_state()
    try:
        yield
    finally:
        DEFAULT_GENERATOR.set_state(state)


def _copied(value: Value, real: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride, dtype=value.dtype).copy_(real)


def _has_data(tensor: Tensor) -> bool:
    return not (isinstance(tensor, FakeTensor) or tensor.is_meta)


def _values_of(call: Call | None) -> list[Value]:
    return [] if call is None else values_in((call.args, call.kwargs))


def _blocks_of(call: Call) -> set[int]:
    return {value.block for value in _values_of(call)}


def _in_layout(tensor: Tensor | None, value: Value) -> Tensor:
    """Return a tensor in the layout that a trace has for it; zeros for what only a backward pass reads."""
    if tensor is not None and tensor.shape == value.shape and tensor.stride() == value.stride:
        return tensor
    size = value.offset + 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride, strict=True))
    memory = torch.zeros(max(size, 0), dtype=value.dtype)
    if tensor is not None and tensor.shape == value.shape:
        memory.as_strided(value.shape, value.stride, value.offset).copy_(tensor)
    return memory


def _batch_norm(call: Call, tensors: Mapping[int, Tensor]) -> tuple[Tensor | None, ...]:
    """Return what cuDNN's batch norm returns, without what it keeps for its backward pass."""
    normalized = Call("aten.native_batch_norm.default", call.args, call.kwargs, ())
    return (run_call(normalized, tensors)[0], *[None] * (len(call.outputs) - 1))


def _attention(call: Call, tensors: Mapping[int, Tensor]) -> tuple[Tensor | None, ...]:
    """Return the result of an attention of a GPU, by its formula."""
    names = {"is_causal": False, "scale": None, **dict(call.kwargs)}
    flags = [each for each in call.args[3:] if isinstance(each, bool)]
    bias = next((each for each in call.args[3:] if isinstance(each, Value)), None)
    position = 0 if "flash" in call.operator else 1  # others have first whether they keep what the backward pass needs
    is_causal = flags[position] if len(flags) > position else names["is_causal"]
    options = (("is_causal", is_causal), ("scale", names["scale"]))
    formula = Call("aten.scaled_dot_product_attention.default", (*call.args[:3], bias), options, ())
    return (run_call(formula, tensors), *[None] * (len(call.outputs) - 1))


_ON_CPU = {
    "cudnn_batch_norm": _batch_norm,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
}
"""Operators that only a GPU has: functions of their calls and of the tensors that these read."""


def has_values(module: nn.Module, arguments: Any) -> bool:
    """Return whether a module and its arguments have data."""
    tensors = [*module.parameters(), *module.buffers(), *tree_leaves(arguments)]
    return all(_has_data(tensor) for tensor in tensors if isinstance(tensor, Tensor))
