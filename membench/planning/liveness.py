"""How much memory a schedule holds, instruction by instruction: a static property of the program."""

from collections.abc import Iterator

from membench.schedule import Compute, Free, Prefetch, Reserve, Reuse, Schedule
from membench.task_graph import Role


def residencies(schedule: Schedule) -> Iterator[tuple[int, bool]]:
    """Yield (block, True where it becomes resident or False where it ceases to be), in order.

    A block whose space is reused ceases there; one that the caller gets never does.
    """
    for instruction in schedule.instructions:
        match instruction:
            case Compute(task):
                for block in schedule.graph.tasks[task].creates:
                    yield block, True
            case Prefetch(block):
                yield block, True
            case Free(block) | Reuse(dead=block):
                yield block, False


def live_bytes(schedule: Schedule, roles: frozenset[Role] | None = None) -> list[int]:
    """Return the bytes in use during each instruction, workspace included.

    Args:
        roles: count only blocks that hold these (and no workspace, no overhead); all by default.
    """
    graph = schedule.graph
    counted = [roles is None or block.role in roles for block in graph.blocks]
    if roles is None:
        total_bytes = graph.external_bytes
    else:
        total_bytes = sum(b.size_bytes for b in graph.blocks if b.layer < 0 and counted[b.index])
    space_bytes: dict[int, int] = {}
    result = []
    for instruction in schedule.instructions:
        workspace_bytes = 0
        opened: tuple[int, ...] = ()
        match instruction:
            case Compute(task):
                opened = graph.tasks[task].creates
                workspace_bytes = graph.tasks[task].workspace_bytes if roles is None else 0
            case Prefetch(block):
                opened = (block,)
            case Reserve(block, size):
                space_bytes[block] = size
                total_bytes += size if counted[block] else 0
            case Reuse(block, dead):
                size = space_bytes.pop(dead)
                space_bytes[block] = size
                total_bytes += size * (counted[block] - counted[dead])
            case Free(block):
                size = space_bytes.pop(block)
                total_bytes -= size if counted[block] else 0
        for block in opened:
            if block not in space_bytes:
                space_bytes[block] = graph.blocks[block].size_bytes
                total_bytes += space_bytes[block] if counted[block] else 0
        result.append(total_bytes + workspace_bytes)
    return result


def peak_bytes(schedule: Schedule, roles: frozenset[Role]) -> int:
    """Return the most that blocks of these roles hold at any instruction."""
    return max(live_bytes(schedule, roles), default=0)


def copied_bytes(schedule: Schedule, instruction_type: type) -> int:
    """Return the bytes that all `Offload` (or all `Prefetch`) instructions move."""
    blocks = schedule.graph.blocks
    return sum(blocks[i.block].size_bytes for i in schedule.instructions if isinstance(i, instruction_type))
