"""Recorder of an optimizer's step on tensors without data: operators, memory that they move, temporaries.

A dispatch mode on top of a `FakeTensorMode`. Weights, gradients and states are fake. Small tensors that Python makes in
host memory, such as the number of steps, are real: an optimizer reads their values. A number that it reads of a fake
tensor is 1, and a truth value is false.
"""

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from membench.capture.lifetimes import Lifetimes
from membench.capture.operation import Operation, as_list, call_key, operation_of
from membench.capture.operators import aten
from membench.capture.operators.foreach import kernel_launches
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind
from membench.core.libraries.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    no_dispatch,
    operator_schema,
    read_number,
    storage_address,
    tree_leaves,
)

_MOST_REAL_ELEMENTS = 4096
"""Of a tensor in host memory that is real; a larger one has no values."""


_ON_LISTS = ("_foreach_", "_fused_")
"""Beginnings of the names of operators on lists of tensors."""


@dataclass(frozen=True, slots=True)
class UpdateOperator:
    """An operator of an update.

    Attributes:
        kind, precision, operations: see `Task`.
        read_bytes, written_bytes: device memory read and written, by block.
        launches: kernels.
        workspace_bytes: held while it runs in addition to its arguments and results.
    """

    kind: Kind
    precision: Precision
    operations: int
    read_bytes: Mapping[int, int]
    written_bytes: Mapping[int, int]
    launches: int
    workspace_bytes: int = 0

    @property
    def moved_bytes(self) -> int:
        """Device memory read and written."""
        return sum(self.read_bytes.values()) + sum(self.written_bytes.values())


class UpdateRecorder(TorchDispatchMode):
    """Records the operators of an optimizer's steps on a device, and the lifetimes of the memory that they use.

    Args:
        fake_mode: under which the steps run.
        device: the weights' device.

    Attributes:
        mixes_weights: whether what is written for a weight may depend on another weight, on how many were updated
            before, or on random numbers: then the weights cannot be updated in another order.
    """

    def __init__(self, fake_mode: FakeTensorMode, device: torch.device) -> None:
        super().__init__()
        self._fake_mode, self._device_type = fake_mode, device.type
        self._operations: dict[Hashable, Operation] = {}
        self._operators: list[UpdateOperator] = []
        self._lifetimes = Lifetimes(self._operators)
        self._sizes_bytes: list[int] = []  # by block
        self._made: list[int] = []  # operators recorded by then, by block
        self._start: tuple[int, int, int] | None = None
        self._owners: Mapping[int, str] = {}  # the weight that a block belongs to
        self._sources: dict[int, frozenset[str]] = {}  # by block, the weights that its contents depend on
        self._read: frozenset[str] = frozenset()  # weights that numbers which Python has read depend on
        self.mixes_weights = False

    def block_of(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's memory on the device; None for a tensor in host memory."""
        if tensor.device.type != self._device_type:
            return None
        storage = tensor.untyped_storage()
        block = self._lifetimes.blocks.get(storage_address(storage))
        if block is None:
            block = len(self._sizes_bytes)
            self._sizes_bytes.append(storage.nbytes())
            self._made.append(len(self._operators))
            self._lifetimes.follow(tensor, block)
        return block

    def begin(self, owners: Mapping[int, str]) -> None:
        """Record operators from here on; of those before, what they made is known to be in use.

        Args:
            owners: by block, the weight that it is or is of, as its gradient and states are; empty: several.
        """
        self._start, self._owners = self._now(), owners
        self._sources = {block: frozenset({name}) for block, name in owners.items()}

    @property
    def recorded(self) -> list[UpdateOperator]:
        """The operators since `begin`."""
        return self._operators if self._start is None else self._operators[self._start[0] :]

    def held_bytes(self) -> list[int]:
        """Return what is held while each recorded operator runs, and after the last, in addition to what was before."""
        assert self._start is not None
        first, blocks, releases = self._start
        changes_bytes = [0] * (len(self.recorded) + 1)
        for block in range(blocks, len(self._made)):
            changes_bytes[self._made[block] - first] += self._sizes_bytes[block]
        for released, block in self._lifetimes.releases[releases:]:
            changes_bytes[released - first] -= self._sizes_bytes[block]
        workspaces_bytes = [*(each.workspace_bytes for each in self.recorded), 0]
        return [held + own for held, own in zip(accumulate(changes_bytes), workspaces_bytes, strict=True)]

    @contextmanager
    def one_kernel(self) -> Iterator[None]:
        """Record a block's operators as one, as `torch.compile` fuses them, without what they make for each other."""
        first, blocks, releases = self._now()
        yield
        inner = self._operators[first:]
        del self._operators[first:]
        living = set(self._lifetimes.blocks.values())
        for block in range(blocks, len(self._made)):
            self._made[block] = first
            if block not in living:
                self._sizes_bytes[block] = 0
        self._lifetimes.releases[releases:] = [(first + 1, block) for _, block in self._lifetimes.releases[releases:]]

        def outer_bytes(parts: list[Mapping[int, int]]) -> dict[int, int]:
            return {b: n for part in parts for b, n in part.items() if b < blocks or b in living}

        if inner:
            self._operators.append(
                UpdateOperator(
                    Kind.OTHER,
                    inner[0].precision,
                    sum(each.operations for each in inner),
                    outer_bytes([each.read_bytes for each in inner]),
                    outer_bytes([each.written_bytes for each in inner]),
                    launches=1,
                )
            )

    def _now(self) -> tuple[int, int, int]:
        return len(self._operators), len(self._made), len(self._lifetimes.releases)

    # ---- operators ----------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(not issubclass(each, FakeTensor) and hasattr(each, "__tensor_flatten__") for each in types):
            return NotImplemented  # a subclass that consists of other tensors, whose operators come next
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0].device
        if func is read_number and isinstance(args[0], FakeTensor):
            self._read |= self._sources_of(args)
            return _number(args[0].dtype)
        output = self._run(func, args, kwargs)
        self._record(func, args, kwargs, output)
        return output

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tensors_of((args, kwargs))
        if not any(isinstance(each, FakeTensor) for each in given):
            if torch.device(kwargs.get("device") or "cpu").type == "cpu" and (given or _is_small(args)):
                with no_dispatch():
                    return func(*args, **kwargs)
            return func(*args, **kwargs)
        written = aten.overwritten(func, args, kwargs)
        if aten.makes_nothing(func) and tensors_of(written):  # so it need not run
            return _returned(func, written)
        key = call_key(func, args, kwargs)
        if (operation := self._operations.get(key)) is not None:
            return operation.run_again(self._fake_mode, args)
        output = func(*args, **kwargs)
        if key is not None and not isinstance(output, list):
            created = list(map(self._lifetimes.is_new, as_list(output)))
            operation = operation_of(func, args, kwargs, output, created)
            is_view = operation.view_of is not None  # aten.to may be, and may make a tensor
            if operation.outputs is not None and not (is_view and any(created)):
                self._operations[key] = operation
        return output

    def _record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        known = len(self._sizes_bytes)
        given, written = tensors_of((args, kwargs)), tensors_of(aten.overwritten(func, args, kwargs))
        read_bytes = self._extents_bytes(given)
        blocks = ((each, self.block_of(each)) for each in tensors_of(output))
        made = [each for each, block in blocks if block is not None and block >= known]
        if self._start is None or not (written or made):  # a view
            return
        written_bytes = self._extents_bytes([*written, *made])
        if not read_bytes and not written_bytes:
            return
        self._note_sources(func, args, kwargs, output)
        is_product = aten.kind_of(func) is Kind.LINEAR
        dtype = next((each.dtype for each in given if each.is_floating_point()), torch.float32)
        operations = sum(each.numel() for each in (*written, *made))
        if is_product:
            operations = aten.floating_point_operations(func, args, kwargs, output)
        self._operators.append(
            UpdateOperator(
                kind=Kind.LINEAR if is_product else Kind.OTHER,
                precision=Precision.of_dtype(dtype),
                operations=operations,
                read_bytes=read_bytes,
                written_bytes=written_bytes,
                launches=kernel_launches(func, args, kwargs),
                workspace_bytes=aten.number_bytes(func, args) if self._device_type == "cpu" else 0,
            )
        )

    # ---- dependences --------------------------------------------------------------------------------

    def _note_sources(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Note the weights that what an operator writes depends on; one on lists writes each element from its like."""
        self.mixes_weights |= torch.Tag.nondeterministic_seeded in func.tags
        given, written = [*args, *kwargs.values()], [*aten.overwritten(func, args, kwargs), output]
        lists = [each for each in given if isinstance(each, list | tuple) and tensors_of(each)]
        if not func.__name__.startswith(_ON_LISTS) or len({len(each) for each in lists}) != 1:
            self._note_written(written, self._sources_of(given))
            return
        of_all = self._sources_of([each for each in given if isinstance(each, Tensor)])
        lists_written = [each for each in written if isinstance(each, list | tuple) and each]
        for position in range(len(lists[0])):
            sources = self._sources_of([each[position] for each in lists]) | of_all
            self._note_written([each[position] for each in lists_written], sources)

    def _note_written(self, written: Any, sources: frozenset[str]) -> None:
        assert self._start is not None
        for each in tensors_of(written):
            block = self.block_of(each)
            if block is None:
                self._read |= sources
                continue
            self._sources[block] = self._sources.get(block, frozenset()) | sources
            owner = self._owners.get(block)
            is_kept = owner is None and block < self._start[1]  # it is the optimizer's, and no weight's
            self.mixes_weights |= is_kept or owner == "" or bool(owner and sources - {owner})

    def _sources_of(self, tree: Any) -> frozenset[str]:
        blocks = (self.block_of(each) for each in tensors_of(tree))
        return self._read.union(*(self._sources.get(block, ()) for block in blocks if block is not None))

    def _extents_bytes(self, tensors: list[Tensor]) -> dict[int, int]:
        """Return the bytes of each block that some tensors have on the device."""
        found: dict[int, int] = {}
        for each in tensors:
            if (block := self.block_of(each)) is not None:
                size_bytes = min(each.numel() * each.itemsize, self._sizes_bytes[block])
                found[block] = max(size_bytes, found.get(block, 0))
        return found


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors in nested containers, those of which a subclass consists in its place."""
    return [inner for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) for inner in _inner(leaf)]


def state_tensors(state: object) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the tensor of each entry of a weight's state."""
    entries = state.items() if isinstance(state, Mapping) else [("state", state)]
    for key, entry in entries:
        tensors = tensors_of(entry)
        for number, tensor in enumerate(tensors):
            yield (f"{key}{number}" if len(tensors) > 1 else str(key)), tensor


def _inner(tensor: Tensor) -> Iterator[Tensor]:
    if isinstance(tensor, FakeTensor) or not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _inner(getattr(tensor, name))


def _returned(func: Any, written: list[Any]) -> Any:
    """Return what an operator returns of the arguments that it has written to."""
    count = len(operator_schema(func).returns)
    return None if not count else written[0] if count == 1 else tuple(written[:count])


def _number(dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1


def _is_small(args: tuple[Any, ...]) -> bool:
    """Return whether an operator without tensors makes a small one."""
    shape = args[0] if args and isinstance(args[0], list | tuple) else ()
    return prod(shape) <= _MOST_REAL_ELEMENTS
