"""Gradients in the memory of gradients that die: as Inductor reuses a buffer, a fused task writes over what it has read last.

    [threshold_backward, native_batch_norm_backward](dy, ...) -> dx        ->        [..., copy_(dy, dx)](dy, ...), which writes dy

The program says so itself, by a copy to its input at its end. Inductor makes the kernel write there, or, where other elements are
still to be read, copies. Activations are not written over: a method may want them again.
"""

from collections.abc import Iterable
from dataclasses import replace

from membench.core.call import Call, Value
from membench.core.changed_tasks import rename_blocks
from membench.core.program import fused_call, program_of
from membench.core.task_graph import Phase, Role, Task, TaskGraph

_COPY = "aten.copy_.default"


def with_gradients_in_place(graph: TaskGraph, tasks: Iterable[Task]) -> list[Task]:
    """Return tasks of a graph, of which fused ones of the backward pass make no new memory where a gradient's is free.

    Args:
        tasks: in the order in which they run.
    """
    tasks = list(tasks)
    last = {block: at for at, task in enumerate(tasks) for block in (*task.reads, *task.writes)}
    renamed: dict[int, int] = {}
    made: list[Task] = []
    for at, task in enumerate(tasks):
        dying = {block for block in task.reads if last[block] == at and block not in task.writes}
        found = _pair(graph, task, dying) if task.phase is Phase.BACKWARD else None
        changed = rename_blocks(task, renamed)
        if found is not None:
            gradient, result = found
            memory = renamed.get(gradient.block, gradient.block)
            changed = _in_place(changed, replace(gradient, block=memory), result)
            renamed[result.block] = memory
        made.append(changed)
    return made


def _pair(graph: TaskGraph, task: Task, dying: set[int]) -> tuple[Value, Value] | None:
    """Return the largest output of a program that can lie where an input is, behind that input; None if there is none.

    Args:
        dying: blocks that the task reads last.
    """
    program = program_of(task.call)
    if program is None or task.call is None:
        return None
    inputs: tuple[Value, ...] = task.call.args[1]
    pairs = (
        (gradient, result)
        for result in task.call.outputs
        for gradient in inputs
        if result is not None
        and gradient.block in dying
        and sum(value.block == gradient.block for value in inputs) == 1
        and all(_is_gradient(graph, value) for value in (gradient, result))
        and replace(gradient, block=result.block) == result
    )
    return max(pairs, key=lambda pair: pair[1].extent_bytes, default=None)


def _is_gradient(graph: TaskGraph, value: Value) -> bool:
    """Return whether a value is the whole of a gradient that is made and given back in the step."""
    block = graph.blocks[value.block]
    return block.role is Role.GRADIENT and not value.offset and value.extent_bytes == block.size_bytes


def _in_place(task: Task, gradient: Value, result: Value) -> Task:
    """Return a task that writes a result over a gradient that it reads."""
    program, call = program_of(task.call), task.call
    assert program is not None and call is not None
    at, to = call.outputs.index(result), call.args[1].index(gradient)
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
        writes=tuple(gradient.block if block == result.block else block for block in task.writes),
        creates=tuple(block for block in task.creates if block != result.block),
        call=fused_call(changed, call.args[1], (*call.outputs[:at], *call.outputs[at + 1 :])),  # type: ignore[arg-type]
    )
