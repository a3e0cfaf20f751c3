"""Feature extraction and classifier, which vDNN treats differently (Sections 2.1 and 3.2)."""

from membench.core.task_graph import Kind, LayerTasks, TaskGraph


def feature_layers(graph: TaskGraph) -> tuple[LayerTasks, ...]:
    """Return the forward layers up to the last convolution or pooling; what follows is the classifier."""
    layers = graph.forward_layers
    found = [i for i, layer in enumerate(layers) if layer.has_kind(Kind.CONVOLUTION, Kind.POOLING)]
    return layers[: found[-1] + 1] if found else ()
