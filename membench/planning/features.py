"""Feature extraction and classifier, which vDNN treats differently (Sections 2.1 and 3.2)."""

from membench.core.task_graph import Kind, LayerTasks, TaskGraph

FEATURE_KINDS = (Kind.CONVOLUTION, Kind.POOLING, Kind.ATTENTION, Kind.NORMALIZATION)
"""Layers that a classifier does not have: it consists of linear layers, activations, dropout and batch norm."""


def feature_layers(graph: TaskGraph) -> tuple[LayerTasks, ...]:
    """Return the forward layers up to the last one that a classifier does not have; what follows is the classifier.

    In the paper's networks that is the last pooling, in a transformer the last layer norm.
    """
    layers = graph.forward_layers
    found = [i for i, layer in enumerate(layers) if layer.has_kind(*FEATURE_KINDS)]
    return layers[: found[-1] + 1] if found else ()
