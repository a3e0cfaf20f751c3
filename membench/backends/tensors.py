"""Blocks as torch storages, and task calls on them, for the backends of the CPU and of accelerators.

A block is the storage that its operator allocated; the values in it are views made on demand. So an offloaded and
prefetched block has a new storage, and nothing else changes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from membench.backends.calls.calls import BoundCall, BoundCalls
from membench.backends.calls.fused_calls import prepare
from membench.backends.calls.runs import RunSource
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Call, Output, Outputs, Value
from membench.core.graph.schedule import Compute, Free
from membench.core.graph.task_graph import Block, Phase, Task, TaskGraph
from membench.core.libraries.torch_internals import conjugate_view, negative_view


class DeviceTensors:
    """The tensors of one graph on one torch device.

    Args:
        graph: every task but those of the update must have a call.
        device: the device of created and prefetched blocks.
        groups: process groups by axis, of the collectives.

    Attributes:
        update: runs a task of the update; takes the task, and a function that returns a value's tensor.
        passed: by block, tensors that a step takes from its caller in place of running the task that creates them.
    """

    def __init__(
        self, graph: TaskGraph, device: torch.device, groups: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self._graph = graph
        self._device = device
        self._bound = BoundCalls(graph.blocks, device, groups)
        self._values, self._values_of_block = self._bound.values, self._bound.values_of_block
        self.update: Callable[[Task, Callable[[Value], Tensor]], None] | None = None
        self.passed: dict[int, Tensor] = {}
        prepare((task.call for task in graph.tasks), device)
        self._calls = [
            None if task.call is None or task.index == graph.turn else self._bound.bind(task) for task in graph.tasks
        ]
        self._tensors: list[Tensor | None] = [None] * len(self._values)
        self._owners: list[Tensor | None] = [None] * len(graph.blocks)
        self._unverified = set(range(len(graph.tasks)))

    # ---- blocks -------------------------------------------------------------------------------------

    def hold(self, block: int, tensor: Tensor) -> None:
        """Use a tensor, of the caller or just allocated, as a block's memory."""
        self.release(block)
        self._owners[block] = tensor

    def release(self, block: int) -> None:
        """Drop the references to a block's memory."""
        for number in self._values_of_block[block]:
            self._tensors[number] = None
        self._owners[block] = None

    def release_all(self) -> None:
        """Release every block, including external ones."""
        for block in range(len(self._owners)):
            self.release(block)
        self.passed.clear()

    def allocate(self, block: Block) -> None:
        """Allocate new memory for a block, unfilled."""
        self.hold(block.index, torch.empty(block.size_bytes, dtype=torch.uint8, device=self._device))

    def is_resident(self, block: int) -> bool:
        """Return whether a block has memory now."""
        return self._owners[block] is not None

    def as_bytes(self, block: int) -> Tensor:
        """Return a block's memory as a one-dimensional tensor of bytes."""
        owner = self._owners[block]
        assert owner is not None, f"block {self._graph.blocks[block].name} is not resident"
        if owner.dtype is torch.uint8 and owner.dim() == 1:
            return owner  # memory given to the block, perhaps a part of an arena
        return torch.empty(0, dtype=torch.uint8, device=owner.device).set_(owner.untyped_storage())

    def elements(self, block: int) -> Tensor:
        """Return a block's memory as a one-dimensional tensor of the dtype of its values."""
        [dtype] = {self._values[number].dtype for number in self._values_of_block[block]}
        return self.as_bytes(block).view(dtype)

    def tensor(self, value: Value) -> Tensor:
        """Return the tensor that a value describes."""
        owner = self._owners[value.block]
        assert owner is not None, f"block {self._graph.blocks[value.block].name} is not resident"
        return tensor_in(owner, value)

    # ---- tasks --------------------------------------------------------------------------------------

    def run(self, task: Task) -> None:
        """Run a task now."""
        call = self._calls[task.index]
        if call is None:
            self._take(task.index)
            return
        self._allocate_filled(call)
        tensors = self._tensors
        for number in call.numbers:
            if tensors[number] is None:
                self._view(number)
        self._keep(task, call, call.invoke(tensors))

    def run_of(
        self,
        instructions: Sequence[Compute | Free],
        *,
        close_space: Callable[[int], None],
        spaces: Mapping[int, int],
        poison: Callable[[int], None] | None,
    ) -> Callable[[], None]:
        """Return a function that does what these instructions do one by one, if each task has run before.

        Args:
            close_space: called with each block that is freed while there are spaces.
            spaces: larger than their blocks, by block.
            poison: overwrites a block before it is freed.
        """
        source = RunSource(self._graph.tasks, self._calls, self._bound, poisons=poison is not None)
        names = {
            "tensors": self._tensors,
            "owners": self._owners,
            "view": self._view,
            "take": self._take,
            "allocate": self._allocate_block,
            "close_space": close_space,
            "spaces": spaces,
            "poison": poison,
        }
        return source.compiled(instructions, names)

    def prepare(self, task: Task) -> Callable[[], None]:
        """Look up a task's arguments now, and return a function that runs it later and keeps its outputs.

        What its operator fills has memory from now on. Results of tasks that have not run yet are looked up when it
        runs.
        """
        call = self._calls[task.index]
        assert call is not None, "updates and gradients of the caller join the compute stream"
        self._allocate_filled(call)
        arguments: dict[int, Tensor] = {}

        def look_up() -> None:
            for number in call.numbers:
                if number not in arguments and self.is_resident(self._values[number].block):
                    tensor = self._tensors[number]
                    arguments[number] = self._view(number) if tensor is None else tensor

        def run() -> None:
            look_up()
            self._keep(task, call, call.invoke(arguments))

        look_up()
        return run

    def _allocate_filled(self, call: BoundCall) -> None:
        for block in call.filled:
            self._allocate_block(block)

    def _allocate_block(self, block: int) -> None:
        self.allocate(self._graph.blocks[block])

    def _take(self, index: int) -> None:
        """Let the optimizer update the weights, or take what the caller passes for a task's blocks."""
        task = self._graph.tasks[index]
        if task.phase is Phase.UPDATE:
            assert self.update is not None, "the step has no optimizer"
            self.update(task, self.tensor)
            return
        for block in task.creates:
            self.hold(block, self.passed.pop(block))

    def _keep(self, task: Task, call: BoundCall, result: Any) -> None:
        if self._unverified and task.index in self._unverified:
            self._verify(task, result)
        for position, number, block in call.outputs:
            self._tensors[number] = self._owners[block] = result if call.is_single else result[position]

    def _view(self, number: int) -> Tensor:
        tensor = self._tensors[number] = self.tensor(self._values[number])
        return tensor

    def _verify(self, task: Task, result: Any) -> None:
        """Check once that the operator's outputs have the captured layouts."""
        assert task.call is not None
        if found := mismatched_outputs(task.call, outputs_of(result), self._graph):
            raise UnsupportedModel(*describe_mismatch(task, found, self._graph))
        self._unverified.discard(task.index)


def outputs_of(result: Any) -> Outputs:
    """Return the layouts of what an operator has returned."""
    results = result if isinstance(result, tuple | list) else (result,)
    return tuple(output_of(each) if isinstance(each, Tensor) else None for each in results)


def mismatched_outputs(call: Call, returned: Outputs, graph: TaskGraph, *, exactly: bool = False) -> Outputs | None:
    """Return the layouts of a call's new outputs if they differ from the graph's, else None.

    Args:
        exactly: also those that differ in strides of dimensions with one element alone, by which kernels choose how
            they compute.
    """
    pairs = list(zip(call.outputs, returned, strict=True))
    found = tuple(None if value is None else output for value, output in pairs)
    claimed = tuple(
        None if value is None or output is None else claimed_output(value, graph) for value, output in pairs
    )
    if exactly and not any(each and 0 in each.shape for each in found):
        return None if found == claimed else found
    return None if tuple(map(_canonical, found)) == tuple(map(_canonical, claimed)) else found


def output_of(tensor: Tensor) -> Output:
    """Return the layout of an operator's output."""
    offset, size_bytes = int(tensor.storage_offset()), tensor.untyped_storage().nbytes()
    return Output(tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), offset, size_bytes)


def claimed_output(value: Value, graph: TaskGraph) -> Output:
    """Return the layout that a graph has for an output."""
    size_bytes = graph.blocks[value.block].size_bytes
    return Output(value.dtype, value.shape, value.stride, value.offset, size_bytes)


def _canonical(output: Output | None) -> Output | None:
    """Return an output with only the strides that matter: those of dimensions with more than one element."""
    if output is None:
        return None
    sizes = () if 0 in output.shape else output.shape
    pairs = zip(sizes, output.stride, strict=False)
    return replace(output, stride=tuple(step for size, step in pairs if size > 1))


def describe_mismatch(task: Task, outputs: Outputs, graph: TaskGraph) -> tuple[str, str, str]:
    """Return layer, cause and remedy for an operator whose outputs differ from its shape function's."""
    assert task.call is not None
    pairs = zip(outputs, task.call.outputs, strict=True)
    found, claimed = next(
        (output, claimed_output(value, graph))
        for output, value in pairs
        if value is not None and output != claimed_output(value, graph)
    )
    cause = f"operator {task.call.operator} returns {found}, but its shape function predicts {claimed}"
    return graph.layers[task.layer], cause, "replace the operator, or report it"


def tensor_in(memory: Tensor, value: Value) -> Tensor:
    """Return the tensor that a value describes, in memory that begins where the value's block does."""
    if memory.dtype is value.dtype:
        if not value.offset and memory.shape == value.shape and memory.stride() == value.stride:
            return as_read(memory, value)
        offset = memory.storage_offset() + value.offset
        return as_read(memory.as_strided(value.shape, value.stride, offset), value)
    empty = torch.empty(0, dtype=value.dtype, device=memory.device)
    offset = memory.storage_offset() * memory.itemsize // value.dtype.itemsize + value.offset
    return as_read(empty.set_(memory.untyped_storage(), offset, value.shape, value.stride), value)


def as_read(tensor: Tensor, value: Value) -> Tensor:
    """Return a tensor as a value reads it: itself, its conjugate or its negative."""
    if tensor.is_conj() != value.conjugated:
        tensor = conjugate_view(tensor)
    return negative_view(tensor) if tensor.is_neg() != value.negated else tensor
