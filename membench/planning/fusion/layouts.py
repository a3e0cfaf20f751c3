"""Whether Inductor changes a network's images to channels last on a GPU, where its program has them otherwise.

As `decide_layout_opt` decides (``torch/_inductor/graph.py``): in inference by the operations of convolutions, each
counted with what that layout gains or loses by kind; in training by whether one of the convolutions is of a kind that
loses.
"""

from collections import defaultdict

from membench.core.graph.convolution import Convolution
from membench.core.graph.task_graph import Mode, Phase, TaskGraph

_MOST_TASKS = 300
"""Tasks for each convolution, from which on a network counts as one without."""

_TIMES = {"grouped": 1.358, "small": 0.783, "reducing": 0.725, "other": 0.823}
"""In channels last over that in the other layout, by the kind of a convolution."""

_SMALL = 64


def becomes_channels_last(graph: TaskGraph) -> bool:
    """Return whether a compiled network of convolutions gets that layout."""
    forward = [task for task in graph.tasks if task.phase is Phase.FORWARD]
    convolutions = [task.convolution for task in forward if task.convolution is not None]
    if not convolutions or len(forward) >= _MOST_TASKS * len(convolutions):
        return False
    if graph.mode is Mode.TRAINING:
        kinds = [_kinds(each) for each in convolutions]
        loses = any({"grouped", "reducing"} & found for found in kinds)
        return not loses and not all("small" in found for found in kinds)
    operations: defaultdict[str, float] = defaultdict(float)
    for task in forward:
        if task.convolution is not None:
            found = _kinds(task.convolution)
            operations[next(kind for kind in _TIMES if kind in found)] += task.operations
    return sum(_TIMES[kind] * count for kind, count in operations.items()) <= sum(operations.values())


def _kinds(convolution: Convolution) -> set[str]:
    inputs, outputs = convolution.input_channels // convolution.groups, convolution.output_channels
    found = {"other"}
    if convolution.groups > 1 and inputs > 1:
        found.add("grouped")
    if inputs <= _SMALL and outputs <= _SMALL:
        found.add("small")
    if 2 * outputs <= inputs and convolution.kernel_size[0] > 1:
        found.add("reducing")
    return found
