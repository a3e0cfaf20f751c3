"""The validator's rule for pending gradients: each is applied once, by the step behind the one that makes it."""

from membench.core.graph.task_graph import Phase, Role, TaskGraph


def pending_hazard(graph: TaskGraph) -> str:
    """Return why a graph with deferred updates is not a step in the steady state; empty if it is, or has none."""
    pending = {block.index for block in graph.blocks if block.role is Role.PENDING_GRADIENT}
    applied, made, used = set[int](), set[int](), set[int]()

    def name(blocks: set[int]) -> str:
        return repr(graph.blocks[min(blocks)].name)

    for task in graph.tasks if pending else ():
        if task.phase is Phase.UPDATE:
            gradients = pending.intersection(task.reads)
            if again := gradients & made:
                return f"{name(again)} is applied in the step that makes it, and pending for the next one"
            if early := used.intersection(task.writes) if gradients else set():
                return f"{name(early)} is used before {task.name!r}, which is pending from the step before"
            applied |= gradients
        else:
            used.update(task.reads, task.writes)
        made |= pending.intersection(task.creates)
    if lost := pending - (applied & made):
        return f"{name(lost)} is pending, and {'never applied' if lost & made else 'no task makes it'}"
    return ""
