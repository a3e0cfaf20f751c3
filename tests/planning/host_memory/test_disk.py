"""Schedules within a limit of host memory: legal, within it, and to the same bits on a real disk."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from membench.backends.cpu import Chaos
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Drop, Load, Offload, RepeatedSchedule, Schedule, Store
from membench.core.graph.task_graph import HostLocation, Kind, Phase, Role, Task
from membench.core.hardware.machine import HostLimit
from membench.execution.simulation import step_time_s
from membench.planning.builder import ScheduleBuilder
from membench.planning.checking.validate import validate
from membench.planning.host_memory.disk import keep_within, on_disk_bytes
from membench.planning.host_memory.host_places import PAGE_BYTES, host_places
from membench.steps.plan import plan
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import random_layers, random_reference
from tests.helpers.planning.costs import UnitCost
from tests.helpers.planning.four_tasks import four_tasks
from tests.helpers.steps.disk import Visits, host_peak_bytes, least_host_bytes, prepared, run_once, within

SIZE_BYTES = 100


@pytest.fixture(autouse=True)
def small_blocks_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.planning.host_memory.disk.LEAST_BYTES", 1)


def updates_on_host(count: int) -> Schedule:
    """After one task of the device, tasks of the host update one state each, in host memory."""
    graph = four_tasks()
    state = replace(graph.blocks[0], size_bytes=SIZE_BYTES, role=Role.OPTIMIZER_STATE, host_location=HostLocation(0))
    blocks = [
        replace(state, index=number, name=f"state {number}", host_location=HostLocation(number))
        for number in range(count)
    ]
    made = replace(graph.blocks[1], index=count)
    first = replace(graph.tasks[0], reads=(), writes=(count,), creates=(count,))
    updates = [
        Task(number + 1, f"update {number}", Kind.OTHER, Phase.UPDATE, 1, (number,), (number,), (), on_host=True)
        for number in range(count)
    ]
    graph = replace(graph, blocks=(*blocks, made), tasks=(first, *updates))
    builder = ScheduleBuilder("test", graph, budget_bytes=None)
    for task in graph.tasks:
        builder.compute(task)
    return builder.finish()


def instructions_of(schedule: Schedule, kind: type[Load] | type[Store] | type[Drop]) -> Sequence[int]:
    return [item.block for item in schedule.instructions if isinstance(item, kind)]


def test_a_step_within_the_limit_stays_as_it_is() -> None:
    schedule = updates_on_host(4)
    assert within(schedule, 4 * SIZE_BYTES) is schedule


def test_as_many_states_as_needed_are_on_the_disk_and_evenly() -> None:
    schedule = within(updates_on_host(8), 6 * SIZE_BYTES)
    validate(schedule, host_memory_bytes=6 * SIZE_BYTES)
    assert [block.index for block in schedule.graph.blocks if block.is_on_disk] == [0, 2, 4, 6]
    assert instructions_of(schedule, Load) == instructions_of(schedule, Store) == [0, 2, 4, 6]
    assert sorted(instructions_of(schedule, Drop)) == [0, 2, 4, 6]
    assert on_disk_bytes(schedule) == 4 * SIZE_BYTES
    assert host_peak_bytes(schedule) == 6 * SIZE_BYTES


def test_the_next_state_is_loaded_while_the_last_one_is_updated_and_stored() -> None:
    """3 s to update, 50 s to load a state and 100 s to store it: with room for two states, stores set the pace."""
    schedule = within(updates_on_host(4), 2 * SIZE_BYTES)
    first_update_s = 50 + 3
    assert step_time_s(schedule, UnitCost()) == first_update_s + 4 * 100
    alone = within(updates_on_host(4), SIZE_BYTES)
    assert step_time_s(alone, UnitCost()) == 4 * (50 + 3 + 100)


def test_the_least_host_memory_is_stated() -> None:
    free = updates_on_host(4)
    with pytest.raises(InfeasibleSchedule) as found:
        within(free, SIZE_BYTES - 1)
    assert str(found.value) == (
        "host memory of 99 B is too small: update 3 needs 100 B (100 bytes) with this strategy; raise host_memory, or "
        "lower the batch size"
    )
    assert host_peak_bytes(within(free, SIZE_BYTES)) == SIZE_BYTES


def test_a_disk_that_is_missing_or_too_small_is_refused() -> None:
    runs = (RepeatedSchedule(updates_on_host(4)),)
    keep_within(runs, HostLimit(2 * SIZE_BYTES, disk_bytes=4 * SIZE_BYTES))
    for disk_bytes in (0, 4 * SIZE_BYTES - 1):
        with pytest.raises(InfeasibleSchedule, match="of disk that the machine lacks needs 400 B"):
            keep_within(runs, HostLimit(2 * SIZE_BYTES, disk_bytes))


def test_only_some_roles_leave() -> None:
    runs = (RepeatedSchedule(updates_on_host(4)),)
    with pytest.raises(InfeasibleSchedule, match="what cannot leave host memory needs 400 B"):
        keep_within(runs, HostLimit(2 * SIZE_BYTES, on_disk=(Role.WEIGHT,)))


def test_small_blocks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.planning.host_memory.disk.LEAST_BYTES", SIZE_BYTES + 1)
    with pytest.raises(InfeasibleSchedule):
        within(updates_on_host(4), 2 * SIZE_BYTES)


def test_places_of_buffers_do_not_overlap_while_they_are_open() -> None:
    schedule = within(updates_on_host(9), 4 * SIZE_BYTES)
    places = host_places(schedule)
    open_at: dict[int, int] = {}
    left = {block: list(starts) for block, starts in places.starts.items()}
    for item in schedule.instructions:
        if isinstance(item, Load | Offload):
            open_at[item.block] = left[item.block].pop(0)
            assert len(set(open_at.values())) == len(open_at)
        elif isinstance(item, Drop):
            del open_at[item.block]
    assert not any(left.values())
    assert places.size_bytes == 2 * PAGE_BYTES


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 60))])
def test_random_schedules_compute_the_same_bits(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    case = random_reference(random_layers(rng, seed), seed)
    free = plan(case.captured.graph, Visits(rng), COST, None)
    least_bytes, most_bytes = least_host_bytes(free), host_peak_bytes(free)
    for share in (0.0, rng.random()):
        limit_bytes = int(least_bytes + share * (most_bytes - least_bytes))
        schedule = within(free, limit_bytes)
        validate(schedule, host_memory_bytes=limit_bytes)
        for chaos in (None, Chaos(seed, longest_delay_s=0.001)):
            with prepared(case, schedule, tmp_path, chaos) as (backend, program, tensors):
                for _ in range(2):
                    case.check(run_once(case, backend, program, tensors), rounding=0.0)
