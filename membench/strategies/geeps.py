"""GeePS: a GPU pool that is a double buffer in front of host memory.

Cui et al., "GeePS: Scalable deep learning on distributed GPUs with a GPU-specialized parameter server", EuroSys 2016,
as Layrub compares with it (Table 2: "related layers (d+g)", "memory pool"; Section 5.3.1). What Layrub leaves open is
read from the library and the Caffe that its authors published:

- The pool is twice the largest access: everything that one layer, forward or backward, touches at a time. While a layer
  computes in one half, the other half serves the copies of its neighbours, offloads on one stream and prefetches on
  another.
- After a layer, what the next layer does not touch is freed, after an offload where a later layer needs it. What the
  next layer needs is prefetched while this one computes. The host waits for everything at the end of each layer.
- So a shortcut's data is offloaded, prefetched for its later reader of the forward pass, and again for the backward
  pass.

Readings. A copy on the host stays valid until its block is written, so nothing is offloaded twice (GeePS copies what a
forward layer has touched each time). A block that a later layer writes stays until then. Gradients of weights and one
workspace are set aside in addition to the two halves. Where a layer's neighbours need more than the other half, the
pool grows.

Left out: GeePS keeps on the device what fits a capacity that the user configures (here none: the least memory), and
passes the parameters through its pool too. Not Layrub, whose region shares memory between data and gradient.
"""

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import EXTERNAL_ROLES, RESULT_ROLES, Role, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import FixedPool
from membench.strategies.base import Strategy

COPY_BACK_STREAM = "copy back"


class GeePS(Strategy):
    """GeePS: a double-buffered GPU pool before host memory (Cui et al. 2016; Layrub, Table 2 and 5.3.1)."""

    name = "geeps"
    plans_for_budgets = False

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        layers = graph.forward_layers + graph.backward_layers
        set_aside = {b.index for b in graph.blocks if b.role in RESULT_ROLES | {Role.APPLIED_GRADIENT}}
        moves = {b.index for b in graph.blocks if b.role not in EXTERNAL_ROLES} - set_aside
        access_bytes = max((graph.size_bytes(layer.touches & moves) for layer in layers), default=0)
        # two halves, the gradients of weights and the largest workspace
        pool = FixedPool(2 * access_bytes + graph.size_bytes(set_aside) + graph.largest_workspace_bytes)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes, pool=pool)
        last_writer = {block: position for position, layer in enumerate(layers) for block in layer.writes}
        in_pool: set[int] = set()
        for position, layer in enumerate(layers):
            following = layers[position + 1].touches if position + 1 < len(layers) else frozenset()
            for block in sorted(in_pool - layer.touches - following):
                if last_writer[block] < position:
                    builder.offload(block)
            builder.prefetch_offloaded(following, stream=COPY_BACK_STREAM)
            for task in layer.tasks:
                builder.compute(task)
            builder.synchronize()
            in_pool |= layer.touches & moves
            for block in sorted(in_pool - following):
                if builder.is_dead(block) or builder.is_on_host(block):
                    builder.free(block)
                    in_pool.remove(block)
        return builder.finish()
