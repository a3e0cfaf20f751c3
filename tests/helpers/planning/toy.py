"""A graph of three tasks, for tests of real backends: input -> exp -> exp, and their sum as the result."""

import torch

from membench.core.graph.call import Call, Value
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import Pool

ROWS, COLUMNS = 64, 256
SIZE_BYTES = ROWS * COLUMNS * 4


def value(block: int) -> Value:
    return Value(block, torch.float32, (ROWS, COLUMNS), (COLUMNS, 1), 0)


def graph(operator: str = "aten.exp.default") -> TaskGraph:
    roles = (Role.INPUT, Role.ACTIVATION, Role.ACTIVATION, Role.WEIGHT_GRADIENT)
    blocks = tuple(Block(i, f"block{i}", SIZE_BYTES, role, i - 1) for i, role in enumerate(roles))
    calls = (
        Call(operator, (value(0),), (), (value(1),)),
        Call("aten.exp.default", (value(1),), (), (value(2),)),
        Call("aten.add.Tensor", (value(1), value(2)), (), (value(3),)),
    )
    reads = ((0,), (1,), (1, 2))
    tasks = tuple(
        Task(i, f"task{i}", Kind.OTHER, Phase.FORWARD, i, reads[i], (i + 1,), (i + 1,), call=call)
        for i, call in enumerate(calls)
    )
    return TaskGraph("toy", ROWS, blocks, tasks, ("one", "two", "three"))


def migrating(toy: TaskGraph, pool: Pool | None = None) -> Schedule:
    """Offload the first result while the second is computed, and prefetch it for the sum."""
    builder = ScheduleBuilder("test", toy, budget_bytes=None, pool=pool)
    builder.compute(toy.tasks[0])
    builder.offload(1)
    builder.compute(toy.tasks[1])
    builder.free(1)
    builder.prefetch(1)
    builder.compute(toy.tasks[2])
    return builder.finish()


def encoding(toy: TaskGraph, encoded: int, codec: ActivationCodec, stream: str) -> Schedule:
    """Encode the first result while the second is computed, and decode it for the sum."""
    builder = ScheduleBuilder("test", toy, budget_bytes=None)
    builder.compute(toy.tasks[0])
    builder.encode(1, encoded, codec, stream=stream)
    builder.compute(toy.tasks[1])
    builder.free(1)
    builder.decode(1, stream=stream)
    builder.free_dead()
    builder.compute(toy.tasks[2])
    builder.free_dead()
    return builder.finish()
