"""Feature extraction and classifier: the two parts that vDNN treats differently (Section 2.1 and 3.2)."""

import torch

from membench.task_graph import Kind, LayerTasks, Role, TaskGraph

_KINDS = frozenset({Kind.CONVOLUTION, Kind.POOLING})


def feature_layers(graph: TaskGraph) -> tuple[LayerTasks, ...]:
    """Return the forward layers up to the last convolution or pooling; what follows is the classifier."""
    layers = graph.forward_layers
    found = [position for position, layer in enumerate(layers) if has_kind(layer, _KINDS)]
    return layers[: found[-1] + 1] if found else ()


def has_kind(layer: LayerTasks, kinds: frozenset[Kind]) -> bool:
    return any(task.kind in kinds for task in layer.tasks)


def floating_maps(graph: TaskGraph) -> frozenset[int]:
    """Return the blocks of activations that hold single-precision numbers: no indices, no masks."""
    others = {
        value.block
        for task in graph.tasks
        if task.call
        for value in task.call.outputs
        if value is not None and value.dtype is not torch.float32
    }
    maps = {block.index for block in graph.blocks if block.role is Role.ACTIVATION}
    return frozenset(maps - others)
