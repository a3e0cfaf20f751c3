"""Steps of a training played on the caching allocator."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.configuration import load
from membench.core.errors import OutOfMemory
from membench.core.graph.convolution import Convolution
from membench.core.graph.schedule import Hold, RepeatedSchedule, Schedule
from membench.core.graph.task_graph import Kind, Phase, Role, TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.core.units import MIB
from membench.cost.library_memory import convolution_workspace_bytes, product_workspace_bytes
from membench.planning.builder import ScheduleBuilder
from membench.planning.memory.caching_allocator import LARGE_SEGMENT_BYTES
from membench.planning.memory.expandable_allocator import ExpandableAllocator
from membench.planning.memory.reserved_memory import ReservedMemory, reserved_memory
from membench.planning.memory.segment_allocator import SegmentAllocator
from membench.planning.rewrites.rewrite import keep_on_host
from membench.strategies.on_demand import compute_on_demand
from tests.helpers.planning.four_tasks import four_tasks, migrating

DEVICE: DeviceProfile = load("device", "rtx3090")


class Counting(SegmentAllocator):
    """Counts how often unused memory was given back."""

    releases = 0

    def release_cached(self) -> None:
        self.releases += 1
        super().release_cached()


def with_sizes(graph: TaskGraph, sizes: list[int]) -> TaskGraph:
    blocks = tuple(replace(b, size_bytes=size) for b, size in zip(graph.blocks, sizes, strict=True))
    return replace(graph, blocks=blocks, tasks=tuple(replace(t, workspace_bytes=0) for t in graph.tasks))


def on_demand(graph: TaskGraph) -> Schedule:
    builder = ScheduleBuilder("on demand", graph, budget_bytes=None)
    compute_on_demand(builder, graph.tasks)
    return builder.finish()


def played(schedule: Schedule, *, steps: int = 1, device: DeviceProfile = DEVICE) -> ReservedMemory:
    plan = [RepeatedSchedule(schedule)]
    return reserved_memory(plan, SegmentAllocator(), device, steps=steps)


@given(st.lists(st.integers(1, 60 * MIB), min_size=5, max_size=5), st.integers(1, 4))
def test_reserved_is_at_least_allocated_and_that_at_least_the_schedule_s_peak(sizes: list[int], steps: int) -> None:
    schedule = on_demand(with_sizes(four_tasks(), sizes))
    for allocator in (SegmentAllocator(), ExpandableAllocator()):
        found = reserved_memory([RepeatedSchedule(schedule)], allocator, DEVICE, steps=steps)
        assert schedule.peak_bytes <= found.allocated_bytes <= found.reserved_bytes
        assert 0 <= found.fragmentation_bytes < found.reserved_bytes
    assert played(schedule, steps=steps).reserved_bytes <= played(schedule, steps=steps + 1).reserved_bytes


def test_a_step_worked_by_hand(graph: TaskGraph) -> None:
    """Input 30, first 40, second 16, gradient 12, result 6 MiB; each task frees what no later one reads.

    Each of the first four takes a segment of its own: the input is the caller's and stays, first is read by the last
    task, and second by the third. Then the second's 16 MiB are free, and the result of 6 is cut from them.
    """
    schedule = on_demand(with_sizes(graph, [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 6 * MIB]))
    found = played(schedule)
    assert schedule.peak_bytes == (30 + 40 + 16 + 12) * MIB
    assert found == ReservedMemory(schedule.peak_bytes, (30 + 40 + 16 + 12) * MIB, 0)


def test_a_second_step_reuses_the_first_one_s_memory(graph: TaskGraph) -> None:
    schedule = on_demand(with_sizes(graph, [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 6 * MIB]))
    assert played(schedule, steps=3) == played(schedule, steps=1)


def test_a_block_of_another_pool_takes_no_free_memory_of_the_compute_stream(graph: TaskGraph) -> None:
    """As by hand above, but the result of 6 MiB is another stream's: it takes a new segment, of 20 MiB."""
    sized = with_sizes(graph, [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 6 * MIB])
    others = replace(sized, blocks=(*sized.blocks[:-1], replace(sized.blocks[-1], pool="other")))
    found = played(on_demand(others))
    assert found.reserved_bytes == (30 + 40 + 16 + 12 + 20) * MIB
    assert played(on_demand(others), steps=3) == found


def test_fragmentation_counts(graph: TaskGraph) -> None:
    """The result is made last and is larger than every free segment: 14 MiB are reserved while 16 and 12 are free."""
    sizes = [30 * MIB, 40 * MIB, 12 * MIB, 12 * MIB, 14 * MIB]
    found = played(on_demand(with_sizes(graph, sizes)))
    assert found.reserved_bytes == sum(sizes)
    assert found.allocated_bytes == (30 + 40 + 12 + 14) * MIB
    assert found.fragmentation_bytes == 12 * MIB


def test_a_workspace_comes_after_results_and_is_kept_for_others(graph: TaskGraph) -> None:
    """A workspace of 50 MiB in the first task alone is reserved for the rest of the training."""
    sized = with_sizes(graph, [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 6 * MIB])
    first = replace(sized.tasks[0], workspace_bytes=50 * MIB)
    found = played(on_demand(replace(sized, tasks=(first, *sized.tasks[1:]))))
    assert found.allocated_bytes == (30 + 40 + 50) * MIB  # the others are cut from what it leaves
    assert found.reserved_bytes == (30 + 40 + 50) * MIB


CONVOLUTION = Convolution(8, 8, 8, (128, 128), (128, 128), (3, 3), (1, 1), (1, 1), (1, 1), 1, 4)


def test_trying_a_new_convolution_s_algorithms_gives_unused_memory_back(graph: TaskGraph) -> None:
    """The second activation's 40 MiB are unused when the last task begins, whose 50 MiB they have no room for."""
    sized = with_sizes(graph, [30 * MIB, 12 * MIB, 40 * MIB, 14 * MIB, 50 * MIB])
    trying = replace(DEVICE, benchmarks_convolutions=True)

    def left(device: DeviceProfile, groups: int = 1, steps: int = 1) -> tuple[int, int]:
        last = replace(sized.tasks[3], convolution=replace(CONVOLUTION, groups=groups))
        schedule, allocator = on_demand(replace(sized, tasks=(*sized.tasks[:3], last))), Counting()
        reserved_memory([RepeatedSchedule(schedule)], allocator, device, steps=steps)
        return allocator.reserved_bytes, allocator.releases

    assert left(DEVICE) == ((30 + 12 + 40 + 14 + 50) * MIB, 0)
    assert left(trying) == ((30 + 12 + 14 + 50) * MIB, 1)
    assert left(trying, steps=3)[1] == 1  # it is not new any more
    assert left(trying, groups=CONVOLUTION.input_channels) == left(DEVICE)  # PyTorch's own kernel


def test_a_convolution_whose_workspace_finds_no_room_runs_without(graph: TaskGraph) -> None:
    """Winograd's on a V100: 36 values of 4 bytes for each of 1,024 tiles of 8 images' channels, and for the filters."""
    sized = with_sizes(graph, [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 6 * MIB])
    last = replace(sized.tasks[3], convolution=CONVOLUTION)
    plan = [RepeatedSchedule(on_demand(replace(sized, tasks=(*sized.tasks[:3], last))))]
    device, least_bytes = load("device", "v100"), (30 + 40 + 16 + 12) * MIB
    workspace_bytes = 36 * 4 * (2 * 8 * 8 * 1024 + 64)
    assert convolution_workspace_bytes(last, device) == workspace_bytes
    roomy = reserved_memory(plan, SegmentAllocator(), device)
    assert roomy.allocated_bytes == (30 + 40 + 12 + 6) * MIB + workspace_bytes
    full = reserved_memory(plan, SegmentAllocator(least_bytes), device)
    assert full.reserved_bytes == full.allocated_bytes == least_bytes


def test_each_thread_s_first_product_requests_a_workspace_that_stays(graph: TaskGraph) -> None:
    """The forward pass and autograd's thread have a handle each; both workspaces fit into one segment of 20 MiB."""
    sized = with_sizes(graph, [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 10 * MIB])
    products = tuple(replace(task, kind=Kind.LINEAR) for task in sized.tasks)
    with_products = played(on_demand(replace(sized, tasks=products)), steps=3)
    without = played(on_demand(sized), steps=3)
    assert with_products.reserved_bytes == without.reserved_bytes + LARGE_SEGMENT_BYTES
    assert with_products.allocated_bytes == without.allocated_bytes + 2 * product_workspace_bytes(DEVICE)


@pytest.mark.parametrize(("name", "workspace_bytes"), [("a100_40gb", 8_519_680), ("h100", 33_554_432)])
def test_a_workspace_of_products_is_the_device_s(graph: TaskGraph, name: str, workspace_bytes: int) -> None:
    """On Hopper each is a segment of its own: 32 MiB."""
    sized = with_sizes(graph, [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 10 * MIB])
    products = tuple(replace(task, kind=Kind.LINEAR) for task in sized.tasks)
    device = load("device", name)
    with_products = played(on_demand(replace(sized, tasks=products)), steps=3, device=device)
    without = played(on_demand(sized), steps=3, device=device)
    assert with_products.allocated_bytes == without.allocated_bytes + 2 * workspace_bytes
    segments_bytes = max(LARGE_SEGMENT_BYTES, 2 * workspace_bytes)
    assert with_products.reserved_bytes == without.reserved_bytes + segments_bytes


def test_temporaries_of_the_update_are_requests_by_weight(graph: TaskGraph) -> None:
    """Two temporaries of 12 MiB lie where activations were; one of 24 would need a segment of its own."""
    sized = with_sizes(graph, [2 * MIB, 12 * MIB, 12 * MIB, 12 * MIB, 12 * MIB])
    weights = tuple(
        replace(sized.blocks[0], index=5 + i, name=f"weight{i}", size_bytes=12 * MIB, role=Role.WEIGHT)
        for i in range(2)
    )
    update = replace(
        sized.tasks[3],
        index=4,
        phase=Phase.UPDATE,
        reads=(4, 5, 6),
        writes=(5, 6),
        creates=(),
        workspace_bytes=24 * MIB,
    )
    with_update = replace(sized, blocks=(*sized.blocks, *weights), tasks=(*sized.tasks, update))
    without_workspace = (*sized.tasks, replace(update, workspace_bytes=0))
    two = played(on_demand(with_update))
    assert two.reserved_bytes == played(on_demand(replace(with_update, tasks=without_workspace))).reserved_bytes
    one = replace(update, phase=Phase.BACKWARD)
    assert (
        played(on_demand(replace(with_update, tasks=(*sized.tasks, one)))).reserved_bytes
        == two.reserved_bytes + 24 * MIB
    )


def test_a_device_is_too_small_by_reserved_not_by_allocated_memory(graph: TaskGraph) -> None:
    """Allocated 7 MiB at most, but each of the large pool's first segments has 20."""
    plan = [RepeatedSchedule(on_demand(with_sizes(graph, [2 * MIB, 2 * MIB, MIB, MIB, MIB])))]
    with pytest.raises(OutOfMemory):
        reserved_memory(plan, SegmentAllocator(LARGE_SEGMENT_BYTES), DEVICE)
    fitting = SegmentAllocator(LARGE_SEGMENT_BYTES + 4 * MIB)
    found = reserved_memory(plan, fitting, DEVICE)
    assert found.reserved_bytes <= LARGE_SEGMENT_BYTES + 4 * MIB


def test_optimizer_state_is_made_where_it_is_first_used(graph: TaskGraph) -> None:
    """State of 30 MiB that the last task reads takes the place of activations that are free by then."""
    sized = with_sizes(graph, [2 * MIB, 20 * MIB, 40 * MIB, 12 * MIB, 6 * MIB])
    state = replace(sized.blocks[0], index=5, name="momentum", size_bytes=30 * MIB, role=Role.OPTIMIZER_STATE)
    last = replace(sized.tasks[3], reads=(*sized.tasks[3].reads, 5))
    with_state = replace(sized, blocks=(*sized.blocks, state), tasks=(*sized.tasks[:3], last))
    one, two = (played(on_demand(with_state), steps=steps).reserved_bytes for steps in (1, 2))
    assert (
        one == (20 + 20 + 40) * MIB
    )  # the gradient and the result lie behind the input, the state where the second lay
    assert two == one + 40 * MIB  # the second activation no longer finds its segment whole


def test_offloaded_blocks_leave_and_return(graph: TaskGraph) -> None:
    schedule = migrating(with_sizes(graph, [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 6 * MIB]))
    assert played(schedule).allocated_bytes == schedule.peak_bytes


def test_a_hold_is_memory_too(graph: TaskGraph) -> None:
    schedule = on_demand(with_sizes(graph, [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 6 * MIB]))
    holding = replace(schedule, instructions=(Hold(100 * MIB), *schedule.instructions, Hold(0)))
    assert played(holding, steps=2).reserved_bytes == played(schedule).reserved_bytes + 100 * MIB


def test_optimizer_state_at_home_on_the_host_is_on_the_device_only_while_it_visits() -> None:
    graph = with_sizes(four_tasks(), [30 * MIB, 40 * MIB, 16 * MIB, 12 * MIB, 6 * MIB])
    first, *others = graph.blocks
    graph = replace(graph, blocks=(replace(first, role=Role.OPTIMIZER_STATE), *others))
    graph = keep_on_host(graph, frozenset({Role.OPTIMIZER_STATE}))
    builder = ScheduleBuilder("visiting", graph, budget_bytes=None)
    builder.prefetch(first.index)
    compute_on_demand(builder, graph.tasks)
    schedule = builder.finish()
    assert played(schedule, steps=3).allocated_bytes == schedule.peak_bytes
