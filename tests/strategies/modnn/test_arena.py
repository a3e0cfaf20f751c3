"""The arena: pieces never overlap, an exact fit comes first, and planned addresses hold a whole step."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.backends.cpu import CpuBackend
from membench.core.schedule import Schedule
from membench.core.task_graph import EXTERNAL_ROLES, RESULT_ROLES
from membench.planning.liveness import residencies
from membench.planning.pool import ALIGNMENT_BYTES, aligned
from membench.steps.compiled_step import CompiledStep
from membench.steps.plan import plan
from membench.strategies.base import strategies
from membench.strategies.modnn.arena import Arena, Packing, pack
from tests.helpers.networks import COST, reference, run_step

UNIT = ALIGNMENT_BYTES


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9 * UNIT), st.integers(0, 1 << 30)), max_size=60))
def test_pieces_in_use_never_overlap_and_nothing_is_lost(steps: list[tuple[bool, int, int]]) -> None:
    capacity_bytes = 40 * UNIT
    arena = Arena(capacity_bytes)
    held: list[tuple[int, int]] = []
    for is_freed, size_bytes, choice in steps:
        if is_freed and held:
            arena.free(*held.pop(choice % len(held)))
        elif arena.first_without_room([size_bytes]) is None:
            held.append((arena.allocate(size_bytes), size_bytes))
        else:
            with pytest.raises(MemoryError):
                arena.allocate(size_bytes)
        segments = arena.segments()
        assert segments.size_bytes.sum() == capacity_bytes
        assert segments.addresses.tolist() == [0, *segments.size_bytes.cumsum().tolist()[:-1]]
        used = ~segments.is_free
        in_use = set(zip(segments.addresses[used].tolist(), segments.size_bytes[used].tolist(), strict=True))
        assert in_use == {(address, aligned(size)) for address, size in held if size}
        assert not any(one and other for one, other in pairwise(segments.is_free.tolist()))


def test_a_free_piece_of_exactly_the_size_comes_before_the_first_that_is_large_enough() -> None:
    arena = Arena(20 * UNIT)
    addresses = [arena.allocate(units * UNIT) for units in (3, 1, 2, 1)]
    arena.free(addresses[0], 3 * UNIT)
    arena.free(addresses[2], 2 * UNIT)
    assert arena.allocate(2 * UNIT) == addresses[2]
    assert arena.allocate(UNIT) == addresses[0]
    assert arena.held_bytes == 7 * UNIT


def test_several_sizes_have_room_only_together() -> None:
    arena = Arena(4 * UNIT)
    assert arena.first_without_room([2 * UNIT, UNIT, 2 * UNIT]) == 2
    assert arena.first_without_room([2 * UNIT, 2 * UNIT]) is None
    assert arena.held_bytes == 0


def overlaps(schedule: Schedule, packing: Packing) -> int:
    """Count pairs of blocks that are resident at one time and share an address."""
    offsets = pack(schedule, packing)
    blocks = schedule.graph.blocks
    visits = dict.fromkeys(offsets.addresses, 0)
    held: dict[int, tuple[int, int]] = {}
    found = 0
    for block, begins in residencies(schedule):
        if blocks[block].role in EXTERNAL_ROLES | RESULT_ROLES:
            continue
        if not begins:
            del held[block]
            continue
        start = offsets.addresses[block][visits[block]]
        visits[block] += 1
        end = start + blocks[block].size_bytes
        assert end <= offsets.extent_bytes
        found += sum(start < other_end and other_start < end for other_start, other_end in held.values())
        held[block] = (start, end)
    return found


@pytest.mark.parametrize("packing", Packing)
@pytest.mark.parametrize("strategy", strategies())
def test_a_step_in_an_arena_gives_the_same_bits(strategy: str, packing: Packing) -> None:
    case = reference("squeezenet")
    schedule = plan(case.captured.graph, strategies()[strategy](), COST, None)
    assert overlaps(schedule, packing) == 0
    offsets = pack(schedule, packing)
    assert 0 <= offsets.fragmentation < 0.5
    backend = CpuBackend(schedule.graph, offsets=offsets)
    step = CompiledStep(case.work, case.captured, schedule, backend)
    for _ in range(2):
        results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
        case.results.check(results, rounding=schedule.rounding)
    step.close()


def test_with_the_program_in_view_less_is_wasted() -> None:
    schedule = plan(reference("resnet18").captured.graph, strategies()["eager"](), COST, None)
    online, offline = (pack(schedule, packing) for packing in Packing)
    assert online.used_bytes == offline.used_bytes <= offline.extent_bytes <= online.extent_bytes
