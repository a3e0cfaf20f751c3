"""Feature extraction and classifier: the two parts that vDNN treats differently (Section 2.1 and 3.2)."""

from membench.task_graph import Kind, LayerTasks, TaskGraph

_KINDS = frozenset({Kind.CONVOLUTION, Kind.POOLING})


def feature_layers(graph: TaskGraph) -> tuple[LayerTasks, ...]:
    """Return the forward layers up to the last convolution or pooling; what follows is the classifier."""
    layers = graph.forward_layers
    found = [position for position, layer in enumerate(layers) if has_kind(layer, _KINDS)]
    return layers[: found[-1] + 1] if found else ()


def has_kind(layer: LayerTasks, kinds: frozenset[Kind]) -> bool:
    return any(task.kind in kinds for task in layer.tasks)
