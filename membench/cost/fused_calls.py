"""The kernels that Inductor makes of a program, and what they read and write.

What a program computes is inlined into the kernels that need it, so that a kernel reads the program's inputs and writes
the program's outputs. A reduction over numbers that lie next to each other is in the kernel of what reads its result,
as a row stays in a multiprocessor. One across rows is a kernel of its own, and what reads its result another, which
reads the inputs again.

    batch norm, ReLU             x -> mean, variance   |   x, mean, variance -> result
    gradient of a layer norm     dy, x -> dx           |   dy, x -> gradients of the weights
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from membench.core.graph.call import Call, Value, values_in
from membench.core.graph.fused_calls import BATCH_NORMS, FusedCalls

LONGEST_ROW_BYTES = 64 * 1024
"""Of a row that is read once; a longer one is read again for what needs its sum.

Assumed: what a multiprocessor has next to it.
"""

_UNROLLED = 8
"""Least numbers whose sum is a reduction; Inductor adds up fewer in place (`unroll_reductions_threshold`)."""

_ROWS = {"_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"}
_BATCH_NORM_GRADIENTS = {"native_batch_norm_backward", "cudnn_batch_norm_backward"}
_TO_ONE = {"nll_loss_forward", "nll_loss2d_forward", "mse_loss", "smooth_l1_loss"}
_SUMS = {"sum", "mean", "amax", "amin", "var", "var_mean", "linalg_vector_norm"}


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """One kernel of a program.

    Attributes:
        reads, writes: values of the program's memories.
        reduces_across: it adds up numbers that do not lie together.
        moved_bytes: read and written, each pass over the memory counted.
    """

    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    reduces_across: bool
    moved_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A result of a call.

    Attributes:
        inputs: results and inputs of the program that it is made of.
        level: how many reductions across rows come before it, one after another.
        is_across: it is such a reduction, which later kernels read.
        rows: what it is made of that is added up in rows too long to stay.
        has_rows: it is made of sums of rows.
    """

    value: Value
    inputs: tuple["_Operand", ...]
    level: int
    is_across: bool = False
    rows: tuple["_Operand", ...] = ()
    has_rows: bool = False


_Operand = _Node | Value


@cache
def program_kernels(program: FusedCalls) -> tuple[FusedKernel, ...]:
    """Return the kernels of a program, in order."""
    nodes = _nodes(program)
    found = []
    for level in range(max((node.level for node in nodes), default=-1) + 1):
        plain = [node for node in nodes if node.level == level and not node.is_across]
        across = _of_one_size(node for node in nodes if node.level == level + 1 and node.is_across)
        if plain and across and not any(node.has_rows for node in plain):
            across[0] += plain
            plain = []
        found += [_kernel(group) for group in ([plain] if plain else []) + across]
    return tuple(found)


def _nodes(program: FusedCalls) -> list[_Node]:
    """Return what kernels have to make: the program's outputs, what it updates, and reductions across rows."""
    current: dict[int, _Operand] = {value.block: value for value in program.inputs}
    updated: set[int] = set()
    for call in program.calls:
        arguments = values_in((call.args, call.kwargs))
        inputs = tuple(current[value.block] for value in arguments if value.block in current)
        in_place = _updated(call)
        for node in _results(call, arguments, inputs, in_place):
            current[node.value.block] = node
        updated.update(value.block for value in in_place)
    given = {value.block for value in program.inputs}.difference(program.scratch)
    wanted = dict.fromkeys((*program.outputs, *sorted(updated & given)))
    results = [node for node in (current[number] for number in wanted) if isinstance(node, _Node)]
    return list(dict.fromkeys((*_across(results), *results)))


def _across(results: Sequence[_Node]) -> list[_Node]:
    """Return the reductions across rows that results are made of, those among them included."""
    seen = dict.fromkeys(results)
    pending = list(results)
    while pending:
        for node in pending.pop().inputs:
            if isinstance(node, _Node) and node not in seen:
                seen[node] = None
                pending.append(node)
    return [node for node in seen if node.is_across]


def _updated(call: Call) -> list[Value]:
    """Return what a call writes in place."""
    is_in_place = _name(call).endswith("_") and isinstance(call.args[0], Value)
    return [call.args[0]] if is_in_place else []


def _name(call: Call) -> str:
    return call.operator.split(".")[1]


def _results(
    call: Call, arguments: Sequence[Value], inputs: tuple[_Operand, ...], in_place: Sequence[Value]
) -> list[_Node]:
    """Return the results of a call."""
    name, outputs = _name(call), [value for value in call.outputs if value is not None] or in_place
    made_of = [node for node in inputs if isinstance(node, _Node)]
    level = max((node.level for node in made_of), default=0)
    rows = tuple(dict.fromkeys(row for node in made_of for row in node.rows))
    has_rows = any(node.has_rows for node in made_of)

    def plain(value: Value, after: int = 0) -> _Node:
        return _Node(value, inputs, level + after, rows=rows, has_rows=has_rows)

    def across(value: Value) -> _Node:
        return _Node(value, inputs, level + 1, is_across=True)

    def of_rows(value: Value, row_bytes: int) -> _Node:
        long = _summed(name, inputs) if row_bytes > LONGEST_ROW_BYTES else ()
        return _Node(value, inputs, level, rows=(*rows, *long), has_rows=True)

    if call.operator in BATCH_NORMS:
        after = int(bool(call.args[5]))  # statistics of the batch come first
        return [plain(outputs[0], after), *(across(value) for value in outputs[1:])]
    if name in _BATCH_NORM_GRADIENTS:
        return [plain(outputs[0], 1), *(across(value) for value in outputs[1:])]
    if name in _TO_ONE:
        return [across(value) for value in outputs]
    if name in _SUMS:
        reduced = _reduced(arguments[0], outputs[0])
        if prod(arguments[0].shape[axis] for axis in reduced) < _UNROLLED:
            return [plain(value) for value in outputs]
        if not _lie_together(arguments[0], reduced):
            return [across(value) for value in outputs]
        row_bytes = prod(arguments[0].shape[axis] for axis in reduced) * arguments[0].dtype.itemsize
        return [of_rows(value, row_bytes) for value in outputs]
    if name in _ROWS or ("_norm" in name and name != "linalg_vector_norm"):
        largest = max(prod(value.shape) for value in arguments)
        row_bytes = _row_bytes(call, arguments)
        is_weight = [name.endswith("_backward") and prod(value.shape) < largest for value in outputs]
        pairs = zip(outputs, is_weight, strict=True)
        return [across(value) if weight else of_rows(value, row_bytes) for value, weight in pairs]
    return [plain(value) for value in outputs]


def _summed(name: str, inputs: tuple[_Operand, ...]) -> tuple[_Operand, ...]:
    """Return what an operator adds up in rows: for log-softmax's gradient, the incoming gradient alone."""
    return inputs[:1] if name in ("_log_softmax_backward_data", "_fused_rms_norm", "native_layer_norm") else inputs


def _row_bytes(call: Call, arguments: Sequence[Value]) -> int:
    """Return the bytes of the numbers that a normalization or softmax adds up at a time."""
    largest = max(arguments, key=lambda value: prod(value.shape))
    name, numbers = _name(call), [item for item in call.args if type(item) is int]
    if "group_norm" in name:
        samples, _, _, groups = numbers[:4]
        return prod(largest.shape) // (samples * groups) * largest.dtype.itemsize
    if name in _ROWS:
        return largest.shape[numbers[0]] * largest.dtype.itemsize
    normalized = next(item for item in call.args if isinstance(item, tuple))
    return prod(normalized) * largest.dtype.itemsize


def _reduced(source: Value, result: Value) -> list[int]:
    """Return the axes of a sum: those whose size the result lacks, the last ones where that is not clear."""
    if len(result.shape) == len(source.shape):
        return [axis for axis, size in enumerate(source.shape) if result.shape[axis] != size]
    kept, axes = list(result.shape), []
    for axis, size in enumerate(source.shape):
        if kept and kept[0] == size:
            kept.pop(0)
        else:
            axes.append(axis)
    return axes


def _lie_together(source: Value, axes: Sequence[int]) -> bool:
    """Return whether the numbers of each sum lie together, and there are several sums."""
    sizes = list(enumerate(zip(source.shape, source.stride, strict=True)))
    kept = [step for axis, (size, step) in sizes if axis not in axes and size > 1]
    summed = [step for axis, (size, step) in sizes if axis in axes and size > 1]
    return bool(kept) and max(summed, default=0) < min(kept)


def _of_one_size(nodes: Iterable[_Node]) -> list[list[_Node]]:
    """Return reductions by the number of what they add up: of one size they are one kernel."""
    groups: dict[int, list[_Node]] = {}
    for node in nodes:
        size = max((prod(_value(each).shape) for each in node.inputs), default=0)
        groups.setdefault(size, []).append(node)
    return list(groups.values())


def _value(node: _Operand) -> Value:
    return node if isinstance(node, Value) else node.value


def _kernel(nodes: Sequence[_Node]) -> FusedKernel:
    own = set(nodes)
    reads = _read([each for node in nodes for each in node.inputs], own)
    writes = tuple(node.value for node in nodes)
    moved_bytes = sum(value.moved_bytes for value in (*reads, *writes))
    written = [node for node in nodes if not node.is_across]
    size = max((prod(node.value.shape) for node in written), default=0)
    again = _read([row for node in written for row in node.rows], own)
    moved_bytes += sum(value.moved_bytes for value in again if 1 < prod(value.shape) <= size)
    return FusedKernel(reads, writes, any(node.is_across for node in nodes), moved_bytes)


def _read(operands: Sequence[_Operand], own: set[_Node]) -> tuple[Value, ...]:
    """Return what a kernel reads for operands: inputs of the program, and results of kernels before it."""
    found: dict[Value, None] = {}
    seen: set[_Node] = set()
    pending = list(operands)
    while pending:
        node = pending.pop()
        if isinstance(node, Value) or (node.is_across and node not in own):
            found[_value(node)] = None
        elif node not in seen:
            seen.add(node)
            pending += node.inputs
    return tuple(found)
