"""What tests ask of a lowered graph."""

from membench.task_graph import Phase, Role, Task, TaskGraph


def held(graph: TaskGraph, *roles: Role) -> int:
    return sum(block.size_bytes for block in graph.blocks if block.role in roles)


def sizes(graph: TaskGraph, role: Role) -> dict[str, int]:
    return {block.name: block.size_bytes for block in graph.blocks if block.role is role}


def tasks_of(graph: TaskGraph, layer: str, phase: Phase) -> list[Task]:
    return [task for task in graph.tasks if graph.layers[task.layer] == layer and task.phase is phase]


def names(graph: TaskGraph, blocks: tuple[int, ...]) -> set[str]:
    return {graph.blocks[block].name for block in blocks}
