"""vDNN's inference mode, with which mmCNN compares itself (Section 2.3 of mmCNN's paper).

Weights are kept in host memory; a layer's weights and feature maps are on the device only while it runs. Nothing is
split, so the layer with the most weights, the first linear one of most networks, has to fit. Not `mmcnn`.
"""

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import EXTERNAL_ROLES, Mode, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.rewrites.rewrite import keep_on_host
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand


class VdnnInference(Strategy):
    """vDNN's inference mode: one layer's weights and feature maps on the device at a time (mmCNN, Section 2.3)."""

    name = "vdnn_inference"
    plans_for_budgets = False
    modes = frozenset({Mode.INFERENCE})
    moves_weights = True

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = keep_on_host(graph, EXTERNAL_ROLES)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        for layer in graph.forward_layers:
            builder.prefetch_offloaded(layer.reads)
            compute_on_demand(builder, layer.tasks)
        return builder.finish()
