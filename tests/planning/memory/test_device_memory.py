"""The three columns of a step's memory on a card."""

from dataclasses import replace

import pytest

from membench.core.configuration import load
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.graph.task_graph import Mode, TaskGraph
from membench.core.hardware.allocator import AllocatorSettings
from membench.core.hardware.efficiency import Efficiency
from membench.core.units import MIB
from membench.cost.roofline import RooflineCost
from membench.planning.builder import ScheduleBuilder
from membench.planning.memory.device_memory import device_memory, new_allocator
from membench.planning.memory.expandable_allocator import ExpandableAllocator
from membench.planning.memory.segment_allocator import SegmentAllocator
from membench.strategies.base import find_strategy, strategies
from membench.strategies.on_demand import compute_on_demand
from tests.helpers.planning.chains import chain_of_convolutions

DEVICE = load("device", "rtx3090")
CONTEXT_BYTES = DEVICE.context_bytes


def plan_of(graph: TaskGraph, sizes: list[int]) -> list[RepeatedSchedule]:
    blocks = tuple(replace(b, size_bytes=size) for b, size in zip(graph.blocks, sizes, strict=True))
    sized = replace(graph, blocks=blocks, tasks=tuple(replace(t, workspace_bytes=0) for t in graph.tasks))
    builder = ScheduleBuilder("on demand", sized, budget_bytes=None)
    compute_on_demand(builder, sized.tasks)
    return [RepeatedSchedule(builder.finish())]


def test_the_columns_add_up(graph: TaskGraph) -> None:
    """The hand-worked example with fragmentation: 96 MiB are held at most, 108 reserved."""
    plan = plan_of(graph, [size * MIB for size in (30, 40, 12, 12, 14)])
    found = device_memory(plan, DEVICE)
    assert found.allocated_bytes == plan[0].schedule.peak_bytes == 96 * MIB
    assert found.reserved_bytes == 108 * MIB
    assert found.used_bytes == 108 * MIB + CONTEXT_BYTES
    assert found.fits


def test_a_card_without_a_known_context_has_no_used_memory(graph: TaskGraph) -> None:
    found = device_memory(plan_of(graph, [MIB] * 5), replace(DEVICE, context_bytes=None))
    assert found.used_bytes is None
    assert found.reserved_bytes == 2 * 2 * MIB  # two pieces of 1 MiB in each of two segments


def test_a_step_fits_by_what_the_allocator_needs_next_to_the_context(graph: TaskGraph) -> None:
    """Reserved are 108 MiB where there is room. With less, free segments are returned before a request fails.

    The first step fits 96 MiB: 12 free ones are returned before the last request, of 14. In the second step the
    gradient takes 12 of these 14, and the last request needs 14 more for the 12 that it returns.
    """
    plan = plan_of(graph, [size * MIB for size in (30, 40, 12, 12, 14)])

    def fits(room_bytes: int) -> bool:
        return device_memory(plan, replace(DEVICE, memory_bytes=CONTEXT_BYTES + room_bytes)).fits

    assert fits(108 * MIB)
    assert fits(98 * MIB)
    assert not fits(97 * MIB)


def test_where_it_does_not_fit_memory_is_that_of_a_larger_card(graph: TaskGraph) -> None:
    plan = plan_of(graph, [size * MIB for size in (30, 40, 12, 12, 14)])
    small = device_memory(plan, replace(DEVICE, memory_bytes=CONTEXT_BYTES + MIB))
    assert small == replace(device_memory(plan, DEVICE), free_bytes=MIB, fits=False)
    assert small.excess_bytes == small.reserved_bytes - MIB
    assert device_memory(plan, DEVICE).excess_bytes == 0


def test_settings_choose_the_allocator() -> None:
    assert isinstance(new_allocator(AllocatorSettings()), SegmentAllocator)
    both = AllocatorSettings(expandable_segments=True, max_split_bytes=128 * MIB)
    assert isinstance(new_allocator(both), ExpandableAllocator)


@pytest.mark.parametrize("name", strategies(Mode.TRAINING))
def test_every_strategy_s_schedule_can_be_played(name: str) -> None:
    graph = chain_of_convolutions(4, normalized=True)
    strategy = find_strategy(name)()
    schedule = strategy.schedule(graph, RooflineCost(DEVICE, Efficiency(0.5, 0.7)), None)
    found = device_memory([RepeatedSchedule(schedule)], DEVICE)
    assert found.fits
    assert found.allocated_bytes == schedule.peak_bytes <= found.reserved_bytes
