"""Index maps of max pooling in fewer bits between the two passes.

Pooling returns for each output where its input's maximum was: an index into a whole feature map, as an integer of 64
bits. The index fits in 16 or 32. Gist keeps four bits, the position in a window (Jain et al. 2018, Section 3.1), which
its own kernels read; here the integers are widened right before the backward pass, by PyTorch's operators, bit for bit.
"""

from collections.abc import Collection
from dataclasses import replace
from math import prod

import torch

from membench.core.graph.call import Call, Value
from membench.core.graph.changed_tasks import numbered, rename_blocks
from membench.core.graph.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel

_SPATIAL = {"aten.max_pool2d_with_indices.default": 2, "aten.max_pool3d_with_indices.default": 3}
_COPY = "aten._to_copy.default"


def index_maps(graph: TaskGraph) -> dict[int, int]:
    """Return the size in bytes that the index maps which the backward pass alone reads have in fewer bits, by block."""
    found = {}
    for task in graph.tasks:
        if task.phase is Phase.FORWARD and task.call is not None and task.call.operator in _SPATIAL:
            value = task.call.outputs[1]
            if value is not None and _is_whole(graph.blocks[value.block], value):
                found[value.block] = prod(value.shape) * _narrow_type(task.call).itemsize
    for task in graph.tasks:
        if task.phase is not Phase.BACKWARD:
            for block in task.reads:
                found.pop(block, None)
    read = {block for task in graph.tasks for block in task.reads}
    return {block: size_bytes for block, size_bytes in found.items() if block in read}


def narrow_indices(graph: TaskGraph, cost: CostModel, blocks: Collection[int]) -> TaskGraph:
    """Return the annotated graph that stores these index maps, of `index_maps`, in fewer bits."""
    rewriter = _Narrowing(graph, frozenset(blocks))
    for task in graph.tasks:
        rewriter.rewrite(task)
    return cost.annotate(replace(graph, blocks=tuple(rewriter.blocks), tasks=numbered(rewriter.tasks)))


def _narrow_type(pooling: Call) -> torch.dtype:
    image = pooling.args[0]
    assert isinstance(image, Value)
    largest = prod(image.shape[-_SPATIAL[pooling.operator] :])
    return torch.uint16 if largest <= 2**16 else torch.int32 if largest <= 2**31 else torch.int64


def _is_whole(block: Block, value: Value) -> bool:
    return value.offset == 0 and value.extent_bytes == block.size_bytes


class _Narrowing:
    def __init__(self, graph: TaskGraph, narrowed: frozenset[int]) -> None:
        self.blocks = list(graph.blocks)
        self.tasks: list[Task] = []
        self._layers = graph.layers
        self._narrowed = narrowed
        self._values: dict[int, tuple[Value, Value]] = {}  # block -> the map, and the same in fewer bits
        self._widened: dict[int, int] = {}

    def rewrite(self, task: Task) -> None:
        if task.phase is Phase.BACKWARD:
            for block in task.reads:
                if block in self._values and block not in self._widened:
                    self._widen(task, block)
        self.tasks.append(rename_blocks(task, self._widened))
        for block in self._narrowed.intersection(task.creates):
            self._narrow(task, block)

    def _narrow(self, pooling: Task, block: int) -> None:
        assert pooling.call is not None
        [value] = (output for output in pooling.call.outputs if output is not None and output.block == block)
        narrow = replace(value, block=len(self.blocks), dtype=_narrow_type(pooling.call))
        self._values[block] = value, narrow
        self._add(pooling, value, narrow, "narrowed")

    def _widen(self, pooling: Task, block: int) -> None:
        value, narrow = self._values[block]
        self._widened[block] = len(self.blocks)
        self._add(pooling, narrow, replace(value, block=len(self.blocks)), "widened")

    def _add(self, pooling: Task, source: Value, target: Value, verb: str) -> None:
        """Add a block and the task that fills it."""
        name = f"{self._layers[pooling.layer]}:indices {verb}"
        sizes_bytes = [prod(value.shape) * value.dtype.itemsize for value in (source, target)]
        self.blocks.append(Block(target.block, name, sizes_bytes[1], Role.ACTIVATION, pooling.layer))
        self.tasks.append(
            Task(
                index=-1,
                name=name,
                kind=Kind.OTHER,
                phase=pooling.phase,
                layer=pooling.layer,
                reads=(source.block,),
                writes=(target.block,),
                creates=(target.block,),
                moved_bytes=sum(sizes_bytes),
                call=Call(_COPY, (source,), (("dtype", target.dtype),), (target,)),
            )
        )
