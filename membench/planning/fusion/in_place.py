"""Gradients in memory no longer used: as Inductor does, a fused task overwrites what it has read last.

    [threshold_backward, native_batch_norm_backward](dy, ...) -> dx   ->   [..., copy_(dy, dx)](dy, ...), to write dy

The program says so itself, by a copy to its input at its end. Inductor makes the kernel write there, or, where other
elements are still to be read, copies. An activation is written over only where no task runs between those that use it,
as with the logits of a language model between their product and the gradient of the loss: others a method may want to
free and to compute again.
"""

from collections.abc import Sequence
from dataclasses import replace

from membench.core.graph.call import Call, Value
from membench.core.graph.changed_tasks import rename_blocks
from membench.core.graph.fused_calls import fused_call, fused_calls_of
from membench.core.graph.task_graph import Phase, Role, Task, TaskGraph
from membench.planning.uses import touching_tasks

_COPY = "aten.copy_.default"


def with_gradients_in_place(graph: TaskGraph) -> list[Task]:
    """Return a graph's tasks; fused ones of the backward pass write to a block that they read, where one is free."""
    touching = touching_tasks(graph)
    renamed: dict[int, int] = {}
    made: list[Task] = []
    for task in graph.tasks:
        found = _pair(graph, task, _free(graph, task, touching)) if task.phase is Phase.BACKWARD else None
        changed = rename_blocks(task, renamed)
        if found is not None:
            read, result = found
            memory = renamed.get(read.block, read.block)
            changed = _in_place(changed, replace(read, block=memory), result)
            renamed[result.block] = memory
        made.append(changed)
    return made


def _free(graph: TaskGraph, task: Task, touching: Sequence[Sequence[int]]) -> set[int]:
    """Return the blocks that a task reads last and may write to, without a loss for any method.

    Args:
        touching: for each block the tasks that touch it.
    """
    last_reads = (b for b in task.reads if touching[b][-1] == task.index and b not in task.writes)
    return {block for block in last_reads if _is_only_memory(graph, block, touching[block])}


def _is_only_memory(graph: TaskGraph, block: int, users: Sequence[int]) -> bool:
    role = graph.blocks[block].role
    return role is Role.GRADIENT or (role is Role.ACTIVATION and users[-1] - users[0] < len(users))


def _pair(graph: TaskGraph, task: Task, free: set[int]) -> tuple[Value, Value] | None:
    """Return the largest output of a program that can lie where an input is, behind that input; None if there is none.

    Args:
        free: blocks that the task reads and that it may write to.
    """
    program = fused_calls_of(task.call)
    if program is None or task.call is None:
        return None
    inputs: tuple[Value, ...] = task.call.args[1]
    pairs = (
        (read, result)
        for result in task.call.outputs
        for read in inputs
        if result is not None
        and read.block in free
        and sum(value.block == read.block for value in inputs) == 1
        and graph.blocks[result.block].role is Role.GRADIENT
        and all(_is_whole(graph, value) for value in (read, result))
        and replace(read, block=result.block) == result
    )
    return max(pairs, key=lambda pair: pair[1].extent_bytes, default=None)


def _is_whole(graph: TaskGraph, value: Value) -> bool:
    return not value.offset and value.extent_bytes == graph.blocks[value.block].size_bytes


def _in_place(task: Task, read: Value, result: Value) -> Task:
    """Return a task that writes a result over a value that it reads."""
    program, call = fused_calls_of(task.call), task.call
    assert program is not None and call is not None
    at, to = call.outputs.index(result), call.args[1].index(read)
    memory = program.inputs[to]
    copy = Call(_COPY, (memory, program.made()[program.outputs[at]]), (), (None,))
    changed = replace(
        program,
        calls=(*program.calls, copy),
        scratch=tuple(number for number in program.scratch if number != memory.block),
        outputs=(*program.outputs[:at], *program.outputs[at + 1 :]),
    )
    return replace(
        task,
        writes=tuple(read.block if block == result.block else block for block in task.writes),
        creates=tuple(block for block in task.creates if block != result.block),
        call=fused_call(changed, call.args[1], (*call.outputs[:at], *call.outputs[at + 1 :])),  # type: ignore[arg-type]
    )
