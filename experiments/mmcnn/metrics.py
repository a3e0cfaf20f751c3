"""mmCNN's own numbers of a step: the memory that the paper counts for the original network, and the count of copies."""

from membench.core.graph.schedule import Offload, Prefetch
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.graph.timeline import Timeline
from membench.core.hardware.device import DeviceProfile
from membench.steps.plan import Runs
from membench.strategies.mmcnn.strategy import layers_of
from membench.sweep.cells.metrics import Metrics


def step_metrics(plan: Runs, timelines: tuple[Timeline, ...], device: DeviceProfile | None) -> Metrics:
    """Return the memory of the original network as Table 2 counts it, and how many copies a step makes (Figure 9)."""
    schedule = plan[0].schedule
    copies = sum(isinstance(item, Offload | Prefetch) for item in schedule.instructions)
    return {"original_memory_bytes": original_memory_bytes(schedule.graph), "copies": copies}


def original_memory_bytes(graph: TaskGraph) -> int:
    """Return the sum over all layers of weights, input map and output map.

    Nothing is freed, a map between two layers counts in both, and a layer that works in place counts its map twice. A
    Caffe network for classification holds less.
    """
    counted_bytes = sum(layer.feature_map_bytes + layer.weight_bytes for layer in layers_of(graph))
    for layer in graph.forward_layers:
        in_place = (layer.reads & layer.writes) - layer.creates
        counted_bytes += graph.size_bytes(b for b in in_place if graph.blocks[b].role is Role.ACTIVATION)
    return counted_bytes
