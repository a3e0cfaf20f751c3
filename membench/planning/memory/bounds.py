"""Lower bounds on a step's memory, whatever a method does with activations and however it divides the batch."""

from membench.core.graph.task_graph import ARGUMENT_ROLES, Phase, Role, TaskGraph


def least_bytes(graph: TaskGraph) -> int:
    """Return the least that a schedule holds at its peak which leaves the caller's blocks on the device.

    Activations and arguments count as nothing: they may be recomputed, encoded, copied, cut or divided into
    micro-batches. What remains are weights, buffers, an optimizer's states and accumulated gradients; the gradients
    that the step returns; and what each task of the update needs in addition. A schedule that keeps weights in host
    memory may need less.

    Args:
        graph: with its update.
    """
    kept = {block.index for block in graph.blocks if block.is_external and block.role not in ARGUMENT_ROLES}
    returned = {block.index for block in graph.blocks if block.role is Role.WEIGHT_GRADIENT}
    updates = (
        graph.size_bytes(kept.union(task.reads, task.writes)) + task.workspace_bytes
        for task in graph.tasks
        if task.phase is Phase.UPDATE and not task.on_host
    )
    return graph.overhead_bytes + max(graph.size_bytes(kept | returned), *updates, 0)
