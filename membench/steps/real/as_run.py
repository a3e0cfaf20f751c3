"""The graph of a step that runs on a device, with the layouts of its kernels."""

from membench.capture.capture import Captures
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.kernels import Kernels
from membench.planning.fusion.graph import fused
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.operators import OutputMismatch


def graph_as_run(captures: Captures, cost: MeasuredCost, size: int, kernels: Kernels = Kernels.EAGER) -> TaskGraph:
    """Return a graph that has the layouts of the device's kernels, capturing again until all of them agree.

    Args:
        kernels: the graph's tasks are eager operators, or those that Inductor makes of them.

    Raises:
        UnsupportedModel: an operator's outputs differ from its captured layouts after a second capture.
    """
    exactly = True
    while True:
        graph = captures.graph_at(size)
        try:
            cost.annotate(graph, exactly=exactly)
        except OutputMismatch as found:
            if not captures.learn(size, found.outputs):
                if not exactly:
                    raise
                exactly = False  # strides of dimensions with one element may stay others
        else:
            on_cpu = cost.device.type == "cpu"
            return fused(graph, on_cpu=on_cpu) if kernels is Kernels.INDUCTOR else graph
