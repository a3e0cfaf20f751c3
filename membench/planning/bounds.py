"""Lower bounds on a step's memory that hold whatever a method does with activations, and however it divides the batch."""

from membench.core.task_graph import ARGUMENT_ROLES, Phase, Role, TaskGraph


def least_bytes(graph: TaskGraph, *, moves_weights: bool) -> int:
    """Return the least that a schedule of the step holds at its peak.

    Activations and arguments count as nothing: they may be recomputed, encoded, copied, cut or divided into micro-batches.
    What remains are weights, buffers, an optimizer's states and accumulated gradients, the gradients that the step returns,
    and what the update needs: each of its tasks has what it touches on the device.

    Args:
        graph: with its update.
        moves_weights: the schedule may keep the caller's blocks in host memory, but for those in use; see `Strategy`.
    """
    kept = {block.index for block in graph.blocks if block.is_external and block.role not in ARGUMENT_ROLES}
    gradients = {block.index for block in graph.blocks if block.role is Role.WEIGHT_GRADIENT}
    held = set() if moves_weights else kept
    updates = (
        graph.size_bytes(held.union(task.reads, task.writes)) + task.workspace_bytes
        for task in graph.tasks
        if task.phase is Phase.UPDATE
    )
    at_the_end = 0 if moves_weights else graph.size_bytes(kept | gradients)
    return graph.overhead_bytes + max(at_the_end, *updates, 0)
