"""A schedule as text, and what it says of its method."""

from dataclasses import replace

import pytest

from membench.core.graph.schedule import CHANGES_NOTHING, RepeatedSchedule, Schedule, Wait
from membench.core.graph.task_graph import RECOMPUTED_SUFFIX
from tests.helpers.planning.four_tasks import (
    four_tasks,
    in_parallel,
    input_on_host,
    migrating,
    parallel_tasks,
    visiting,
)

SCHEDULES = [migrating(four_tasks()), visiting(input_on_host()), in_parallel(parallel_tasks())]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_its_text_has_a_line_for_each_instruction_under_a_heading(schedule: Schedule) -> None:
    heading, *lines = (line for line in schedule.lines() if line not in (schedule.note, schedule.reason))
    assert heading.startswith("schedule of toy (batch 1) by test: ")
    assert [int(line.split()[0]) for line in lines] == list(range(len(schedule)))
    for instruction, line in zip(schedule.instructions, lines, strict=True):
        assert type(instruction).__name__.lower() in line
        if not isinstance(instruction, Wait) and hasattr(instruction, "block"):
            assert schedule.graph.blocks[instruction.block].name in line


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_that_computes_its_loss_has_no_turn(schedule: Schedule) -> None:
    assert schedule.turn == len(schedule) == len(schedule.instructions)


def test_only_a_method_that_offloads_or_recomputes_changes_something() -> None:
    moved, _, plain = SCHEDULES
    assert (moved.note, plain.note) == ("", CHANGES_NOTHING)
    first, *others = plain.graph.tasks
    again = replace(first, name=first.name + RECOMPUTED_SUFFIX)
    assert replace(plain, graph=replace(plain.graph, tasks=(again, *others))).note == ""


def test_a_bound_is_told_with_its_distance() -> None:
    assert SCHEDULES[0].certificate == ""
    bounded = replace(SCHEDULES[0], decisions=(("lower_bound_s", 1.5), ("gap", 0.25)))
    assert bounded.certificate == ("no schedule takes less than 1.5 s within this memory; this one takes 25.00% more")
    assert bounded.certificate in str(bounded).splitlines()


def test_a_repeated_schedule_has_the_samples_of_its_rounds() -> None:
    schedule = replace(SCHEDULES[0], graph=replace(SCHEDULES[0].graph, batch_size=3))
    assert RepeatedSchedule(schedule).samples == 3
    assert RepeatedSchedule(schedule, 4).samples == 12
    assert str(RepeatedSchedule(schedule)) == str(schedule)
    assert str(RepeatedSchedule(schedule, 4)) == f"4 times the {schedule}"
