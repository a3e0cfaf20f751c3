"""Means of gradients over processes: where the pass puts them, and hazards of programs with misplaced ones."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from membench.core.errors import InvalidSchedule
from membench.core.graph.call import Value
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    EXCHANGE_STREAM,
    AllReduce,
    Compute,
    Instruction,
    Schedule,
    Synchronize,
    Wait,
)
from membench.core.graph.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.checking.validate import validate
from membench.planning.parallel.exchange import Exchange, exchange_gradients

INPUT, MAP, LAST, FIRST = range(4)
OTHER_STREAM = "weight gradient"


def value(block: int) -> Value:
    return Value(block, torch.float32, (5,), (1,), 0)


@pytest.fixture
def schedule() -> Schedule:
    """An activation, then two weights' gradients, the last layer's first, on its own stream and added to once."""
    roles = [Role.INPUT, Role.ACTIVATION, Role.WEIGHT_GRADIENT, Role.WEIGHT_GRADIENT]
    blocks = tuple(Block(i, f"block{i}", 20, role, layer=0) for i, role in enumerate(roles))
    touches = [((INPUT,), (MAP,)), ((MAP,), (LAST,)), ((MAP, LAST), (LAST,)), ((MAP,), (FIRST,))]
    tasks = tuple(
        Task(i, f"task{i}", Kind.OTHER, Phase.BACKWARD, 0, reads, writes, () if i == 2 else writes)
        for i, (reads, writes) in enumerate(touches)
    )
    gradients = (("first", value(FIRST)), ("last", value(LAST)), ("unused", None))
    graph = TaskGraph("toy", 1, blocks, tasks, ("layer",), gradients=gradients)
    builder = ScheduleBuilder("test", graph, budget_bytes=None)
    for task in graph.tasks:
        builder.compute(task, stream=OTHER_STREAM if task.index in (1, 2) else COMPUTE_STREAM)
    return builder.finish()


def without(schedule: Schedule, position: int) -> Schedule:
    """Drop one instruction without a wait for it."""
    program: list[Instruction] = []
    for index, item in enumerate(schedule.instructions):
        if isinstance(item, Wait):
            assert item.instruction != position
            item = replace(item, instruction=item.instruction - (item.instruction > position))
        if index != position:
            program.append(item)
    return replace(schedule, instructions=tuple(program))


@pytest.mark.parametrize("exchange", Exchange)
def test_each_gradient_is_averaged_once_after_its_last_use(schedule: Schedule, exchange: Exchange) -> None:
    averaged = exchange_gradients(schedule, exchange)
    validate(averaged, exchanges=True)
    exchanges = [item.block for item in averaged.instructions if isinstance(item, AllReduce)]
    assert exchanges == [LAST, FIRST]
    assert averaged.peak_bytes == schedule.peak_bytes
    kept = [item for item in averaged.instructions if not isinstance(item, AllReduce | Wait)]
    assert kept == [item for item in schedule.instructions if not isinstance(item, Wait)]


def test_as_made_a_mean_leaves_before_the_next_task_is_issued(schedule: Schedule) -> None:
    program = exchange_gradients(schedule, Exchange.AS_MADE).instructions
    work = [item for item in program if isinstance(item, Compute | AllReduce)]
    assert work.index(AllReduce(LAST)) < work.index(Compute(3))


def test_at_the_end_all_means_are_taken_on_one_process_after_the_last_task(schedule: Schedule) -> None:
    program = exchange_gradients(schedule, Exchange.AT_END).instructions
    work = [item for item in program if isinstance(item, Compute | AllReduce)]
    assert work[-2:] == [AllReduce(LAST, root=0), AllReduce(FIRST, root=0)]


def test_no_wait_is_superfluous(schedule: Schedule) -> None:
    averaged = exchange_gradients(schedule, Exchange.AS_MADE)
    added = [
        index
        for index, item in enumerate(averaged.instructions)
        if isinstance(item, Wait)
        and (item.stream == EXCHANGE_STREAM or isinstance(averaged.instructions[item.instruction], AllReduce))
    ]
    assert added
    for position in added:
        with pytest.raises(InvalidSchedule, match="may still"):
            validate(without(averaged, position), exchanges=True)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda program: [*program, AllReduce(LAST)],
        lambda program: sorted(program, key=lambda item: not isinstance(item, AllReduce)),
    ],
)
def test_a_gradient_that_changes_after_its_mean_is_a_hazard(
    schedule: Schedule, wrong: Callable[[list[Instruction]], list[Instruction]]
) -> None:
    tasks = [Compute(task.index) for task in schedule.graph.tasks]
    ends = [item for item in schedule.instructions if not isinstance(item, Compute | Wait)]
    program = [*tasks[:2], AllReduce(LAST, stream=COMPUTE_STREAM), *tasks[2:], *ends]
    with pytest.raises(InvalidSchedule, match="averaged|not resident"):
        validate(replace(schedule, instructions=tuple(wrong(program))), exchanges=True)


def test_at_the_end_no_gradient_leaves_before_every_stream_is_done(schedule: Schedule) -> None:
    averaged = exchange_gradients(schedule, Exchange.AT_END)
    waits = [
        averaged.instructions[item.instruction]
        for item in averaged.instructions
        if isinstance(item, Wait) and item.stream == EXCHANGE_STREAM
    ]
    assert {(item.stream, item.task) for item in waits if isinstance(item, Compute)} == {
        (COMPUTE_STREAM, 3),
        (OTHER_STREAM, 2),
    }


def test_a_synchronize_does_not_stand_for_a_wait_for_the_exchange(schedule: Schedule) -> None:
    averaged = exchange_gradients(schedule, Exchange.AS_MADE)
    *program, last_wait = averaged.instructions
    assert isinstance(last_wait, Wait)
    with pytest.raises(InvalidSchedule, match="handed to the caller"):
        validate(replace(averaged, instructions=(*program, Synchronize())), exchanges=True)


def test_it_prints(schedule: Schedule) -> None:
    text = str(exchange_gradients(schedule, Exchange.AT_END))
    assert "exchange  all-reduce block2 (20 B) on process 0" in text
