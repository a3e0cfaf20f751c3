"""Hazards of host memory and the disk that validate finds."""

from dataclasses import replace

import pytest

from membench.core.errors import InvalidSchedule
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    COPY_STREAM,
    HOST_STREAM,
    LOAD_STREAM,
    STORE_STREAM,
    Compute,
    Drop,
    Free,
    Instruction,
    Load,
    Offload,
    Prefetch,
    Schedule,
    Store,
    Wait,
)
from membench.core.graph.task_graph import HostLocation, Kind, Phase, Role, Task, TaskGraph
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import host_live_bytes
from tests.helpers.planning.four_tasks import FIRST, INPUT, four_tasks, migrating

STATE = INPUT


def updated_on_host() -> TaskGraph:
    """A device's task makes the first activation, then the host's updates a state whose home is the disk."""
    graph = four_tasks()
    state = replace(graph.blocks[STATE], role=Role.OPTIMIZER_STATE, host_location=HostLocation(STATE, on_disk=True))
    first = replace(graph.tasks[0], reads=())
    update = Task(1, "update", Kind.OTHER, Phase.UPDATE, 1, (STATE,), (STATE,), (), on_host=True)
    return replace(graph, blocks=(state, *graph.blocks[1:2]), tasks=(first, update))


UPDATE: tuple[Instruction, ...] = (
    Load(STATE),  # 0
    Compute(0),
    Wait(HOST_STREAM, 0),  # 2
    Compute(1, HOST_STREAM),  # 3
    Wait(STORE_STREAM, 3),  # 4
    Store(STATE),  # 5
    Wait(LOAD_STREAM, 5),  # 6
    Drop(STATE),  # 7
    Wait(COMPUTE_STREAM, 7),  # 8
    Free(FIRST),
)


def update(changed: dict[int, Instruction] | None = None, *, graph: TaskGraph | None = None) -> Schedule:
    """Return the schedule with other instructions at some positions."""
    program = list(UPDATE)
    for position, instruction in (changed or {}).items():
        program[position] = instruction
    return Schedule("test", graph or updated_on_host(), tuple(program), 85)


def visiting_disk() -> Schedule:
    """Offload the first activation, and let its copy visit the disk."""
    graph = four_tasks()
    program = (
        Compute(0),  # 0
        Wait(COPY_STREAM, 0),
        Offload(FIRST),  # 2
        Compute(1),  # 3
        Wait(COMPUTE_STREAM, 2),
        Free(FIRST),
        Wait(STORE_STREAM, 2),  # 6
        Store(FIRST),  # 7
        Wait(LOAD_STREAM, 7),  # 8
        Drop(FIRST),  # 9
        Compute(2),  # 10
        Free(FIRST + 1),
        Load(FIRST),  # 12
        Wait(COPY_STREAM, 12),  # 13
        Wait(COPY_STREAM, 10),
        Prefetch(FIRST),  # 15
        Wait(COMPUTE_STREAM, 15),
        Compute(3),
        Free(FIRST),
        Free(FIRST + 2),
        Wait(LOAD_STREAM, 15),
        Drop(FIRST),  # 21
        Wait(COMPUTE_STREAM, 21),
    )
    return Schedule("test", graph, program, 245)


NOTHING = Wait(COMPUTE_STREAM, 1)
"""Waits for nothing new."""


def hazard(schedule: Schedule, **limits: int) -> str:
    with pytest.raises(InvalidSchedule) as found:
        validate(schedule, **limits)
    return found.value.hazard


def at(schedule: Schedule, position: int, instruction: Instruction) -> Schedule:
    program = schedule.instructions
    return replace(schedule, instructions=(*program[:position], instruction, *program[position + 1 :]))


def test_both_schedules_are_legal_and_hold_what_liveness_counts() -> None:
    for schedule, most_bytes in ((update(), 100), (visiting_disk(), 80)):
        assert max(host_live_bytes(schedule)) == most_bytes
        validate(schedule, host_memory_bytes=most_bytes)
        found = hazard(schedule, host_memory_bytes=most_bytes - 1)
        assert found == f"holds {most_bytes} bytes of host memory, more than the limit of {most_bytes - 1}"
    assert host_live_bytes(update()) == [100] * 7 + [0] * 3


def test_host_memory_without_a_disk_is_counted_too(graph: TaskGraph) -> None:
    assert max(host_live_bytes(migrating(graph))) == 80
    at_home = replace(
        graph, blocks=(replace(graph.blocks[INPUT], host_location=HostLocation(INPUT)), *graph.blocks[1:])
    )
    assert host_live_bytes(Schedule("test", at_home, (Compute(0),), 0)) == [100]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (2, "'input' is read on the host before the load (instruction 0 on stream load) is known to be done"),
        (4, "'input' is read on the host before update (instruction 3 on stream host) is known to be done"),
        (6, "'input' is dropped while update (instruction 3 on stream host) may still use it"),
        (8, "the step ends while a buffer may still be dropped"),
    ],
)
def test_every_wait_of_an_update_is_needed(position: int, expected: str) -> None:
    assert hazard(update({position: NOTHING})) == expected


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (6, "'first' is read on the host before the offload (instruction 2 on stream copy) is known to be done"),
        (8, "'first' is dropped while the offload (instruction 2 on stream copy) may still use it"),
        (13, "'first' is read on the host before the load (instruction 12 on stream load) is known to be done"),
    ],
)
def test_every_wait_of_a_visit_is_needed(position: int, expected: str) -> None:
    assert hazard(at(visiting_disk(), position, Wait(COMPUTE_STREAM, 0))) == expected


def test_a_buffer_must_not_be_dropped_while_the_disk_reads_it() -> None:
    found = hazard(update({6: Wait(LOAD_STREAM, 3)}))
    assert found == "'input' is dropped while the store (instruction 5 on stream store) may still use it"


def test_a_block_is_loaded_after_its_store() -> None:
    schedule = visiting_disk()
    stored_late = at(at(schedule, 8, Wait(LOAD_STREAM, 2)), 9, Wait(COMPUTE_STREAM, 0))
    assert hazard(stored_late) == "'first' is loaded although it is in host memory"
    never = at(at(schedule, 7, Wait(STORE_STREAM, 2)), 8, Wait(LOAD_STREAM, 2))
    assert hazard(never) == "'first' has no valid copy on the disk"
    elsewhere = at(schedule, 12, Load(FIRST, "another"))
    assert hazard(elsewhere) == (
        "'first' is loaded before the store (instruction 7 on stream store) is known to be done"
    )


def test_a_buffer_that_another_stream_stores_is_not_dropped_at_once() -> None:
    program = (
        Load(STATE),
        Wait(HOST_STREAM, 0),
        Compute(0),
        Compute(1, HOST_STREAM),
        Wait(STORE_STREAM, 3),
        Store(STATE),
    )
    again = (Wait(LOAD_STREAM, 3), Drop(STATE), Load(STATE))
    schedule = Schedule("test", updated_on_host(), (*program, *again), 85)
    assert "is dropped while the store" in hazard(schedule)


def test_what_is_written_on_the_host_must_go_to_its_home_on_the_disk() -> None:
    assert (
        hazard(update({5: Wait(STORE_STREAM, 3), 6: Wait(LOAD_STREAM, 3)}))
        == "input was written, and its home on the disk was not updated"
    )


def test_a_home_on_the_disk_leaves_host_memory_before_the_end() -> None:
    assert hazard(update({7: NOTHING, 8: Wait(COMPUTE_STREAM, 5)})) == "input is still in host memory at the end"


def test_a_copy_that_was_dropped_is_not_read() -> None:
    schedule = visiting_disk()
    assert (
        hazard(at(at(schedule, 12, Wait(LOAD_STREAM, 7)), 13, Wait(COPY_STREAM, 9)))
        == "'first' has no valid copy on the host"
    )


def test_a_task_writes_what_is_in_host_memory() -> None:
    graph = updated_on_host()
    blind = replace(graph, tasks=(graph.tasks[0], replace(graph.tasks[1], reads=())))
    late = update({0: Wait(COMPUTE_STREAM, 0), 2: NOTHING}, graph=blind)
    program = (Compute(0), Compute(1, HOST_STREAM), *late.instructions[4:])
    assert hazard(replace(late, instructions=program)) == "'input' is written on the host, where it has no memory"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({7: Drop(FIRST)}, "'first' is dropped, and has no buffer in host memory"),
        ({7: Drop(STATE, STORE_STREAM)}, "'input' is dropped on stream 'store', not on 'load'"),
        ({6: Store(STATE)}, "'input' is stored twice"),
        ({2: Load(STATE)}, "'input' is loaded although it is in host memory"),
    ],
)
def test_instructions_that_make_no_sense_are_refused(changed: dict[int, Instruction], expected: str) -> None:
    assert hazard(update(changed)) == expected


def test_a_home_in_host_memory_is_not_dropped() -> None:
    graph = updated_on_host()
    at_home = replace(graph.blocks[STATE], host_location=HostLocation(STATE))
    graph = replace(graph, blocks=(at_home, *graph.blocks[1:]))
    program = (Compute(0), Compute(1, HOST_STREAM), Wait(LOAD_STREAM, 1), Drop(STATE))
    assert hazard(Schedule("test", graph, program, 85)) == "'input' is dropped, and host memory is its home"


def test_memory_that_was_dropped_is_opened_at_the_load_stream_s_position() -> None:
    """The second activation could get the first one's buffer while the disk still reads that."""
    schedule = visiting_disk()
    second = FIRST + 1
    program = list(schedule.instructions)
    program[11:11] = [Wait(COPY_STREAM, 10), Offload(second), Wait(COMPUTE_STREAM, 12)]
    renumbered = [_moved(item, 11, 3) for item in program[14:]]
    assert hazard(replace(schedule, instructions=(*program[:14], *renumbered))) == (
        "'second' takes host memory before the load stream has come to this point"
    )


def _moved(instruction: Instruction, start: int, by: int) -> Instruction:
    """Return an instruction behind others that were inserted."""
    if isinstance(instruction, Wait) and instruction.instruction >= start:
        return replace(instruction, instruction=instruction.instruction + by)
    return instruction
