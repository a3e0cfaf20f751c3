"""The loop that executes a schedule, on a backend that notes its calls."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from membench.backends.base import Backend
from membench.core.graph.schedule import Compute, Free, Instruction, Schedule, Wait, Work
from membench.core.graph.task_graph import Task
from membench.execution.executor import BoundSchedule, execute
from tests.helpers.planning.four_tasks import (
    four_tasks,
    in_parallel,
    input_on_host,
    migrating,
    parallel_tasks,
    visiting,
)

SCHEDULES = {
    "migrating": migrating(four_tasks()),
    "visiting": visiting(input_on_host()),
    "two streams": in_parallel(parallel_tasks()),
}
NOT_INSTRUCTIONS = ("prepare", "begin", "end")


def _noting(calls: list[Any], *, with_runs: bool) -> Backend:
    """Return a backend that notes the instructions issued on it; an event is the number of the call that left it."""

    def noted(name: str) -> Callable[..., int]:
        def call(*arguments: Any, **options: Any) -> int:
            calls.append((name, arguments))
            return len(calls) - 1

        return call

    def run_of(instructions: Sequence[Compute | Free]) -> Callable[[], int] | None:
        def run() -> int:
            calls.extend(("compute" if isinstance(each, Compute) else "free", each) for each in instructions)
            return len(calls) - 1

        return run if with_runs else None

    names = Backend.__abstractmethods__ | {"run_of"}
    methods = {name: run_of if name == "run_of" else noted(name) for name in names}
    return type("Noting", (Backend,), {name: staticmethod(method) for name, method in methods.items()})()


def _position(call: tuple[str, Any]) -> tuple[str, int | str]:
    """Return a call's instruction, and the task or the block that it is about."""
    name, arguments = call
    if isinstance(arguments, Compute | Free):
        return name, arguments.task if isinstance(arguments, Compute) else arguments.block
    first = arguments[0] if arguments else ""
    return name, first.index if isinstance(first, Task) else first


def _expected(instruction: Instruction) -> tuple[str, int | str]:
    name = type(instruction).__name__.lower()
    about = {"compute": "task", "wait": "stream"}.get(name, "block")
    return name, getattr(instruction, about, "")


@pytest.mark.parametrize("with_runs", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_each_step_issues_the_instructions_in_their_order(name: str, with_runs: bool) -> None:
    calls: list[Any] = []
    schedule = SCHEDULES[name]
    program = BoundSchedule(schedule, _noting(calls, with_runs=with_runs))
    work = [index for index, item in enumerate(schedule.instructions) if isinstance(item, Work)]
    for timed in (True, False, True, False):
        calls.clear()
        assert list(program.issue(timed=timed)) == work
        assert [_position(call) for call in calls if call[0] not in NOT_INSTRUCTIONS] == [
            _expected(instruction) for instruction in schedule.instructions
        ]
        assert [calls[0][0], calls[-1][0]] == ["begin", "end"]


@pytest.mark.parametrize("with_runs", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_stream_waits_for_the_event_of_the_instruction_that_it_names(name: str, with_runs: bool) -> None:
    calls: list[Any] = []
    schedule = SCHEDULES[name]
    program = BoundSchedule(schedule, _noting(calls, with_runs=with_runs))
    waits = [item for item in schedule.instructions if isinstance(item, Wait)]
    assert waits
    for _ in range(2):
        calls.clear()
        program.issue(timed=False)
        awaited = [calls[event] for name, (_, event) in (call for call in calls if call[0] == "wait")]
        assert list(map(_position, awaited)) == [_expected(schedule.instructions[each.instruction]) for each in waits]


def test_a_step_stops_at_the_turn_and_goes_on_from_there() -> None:
    calls: list[Any] = []
    schedule = SCHEDULES["migrating"]
    for turn in range(len(schedule) + 1):
        with patch.object(Schedule, "turn", turn):
            program = BoundSchedule(replace(schedule), _noting(calls, with_runs=True))  # whose turn is not cached
            for timed in (True, False):
                calls.clear()
                program.issue_forward(timed=timed)
                assert len(calls) == 1 + turn  # `begin` first
                program.issue_backward()
                assert len(calls) == len(schedule) + 2


def test_what_is_executed_is_timed_at_every_instruction_that_joined_a_stream() -> None:
    calls: list[Any] = []
    schedule = SCHEDULES["two streams"]
    execute(schedule, _noting(calls, with_runs=True))
    name, (issued,) = calls[-1]
    assert name == "timeline"
    assert [schedule.instructions[at] for at in issued] == [
        each for each in schedule.instructions if isinstance(each, Work)
    ]
