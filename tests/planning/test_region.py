"""A constant region: every block has a piece, and pieces are reused."""

from dataclasses import replace

from membench.core.graph.task_graph import TaskGraph
from membench.planning.builder import ScheduleBuilder
from membench.planning.checking.validate import validate
from membench.planning.region import Region, join_regions, keep_apart, plan_region
from tests.helpers.planning.four_tasks import FIRST, GRADIENT, SECOND, migrating


def test_a_region_holds_every_block_and_is_reused(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    region = plan_region(schedule)
    assert region.piece_bytes == (80, 60, 40)  # the gradient meets the second activation, then the returning first
    fixed = migrating(graph, region=region)
    validate(fixed)
    assert fixed.peak_bytes == 100 + region.total_bytes + 20 + 5


def test_blocks_that_never_meet_share_a_piece(graph: TaskGraph) -> None:
    """Of a chain, whose last task reads the gradient alone, every second block."""
    last = replace(graph.tasks[3], reads=(GRADIENT,))
    chain = replace(graph, tasks=(*graph.tasks[:3], last))
    builder = ScheduleBuilder("test", chain, budget_bytes=None)
    for task in chain.tasks:
        builder.compute(task)
        builder.free_dead()
    schedule = builder.finish()
    region = plan_region(schedule)
    assert region == Region((80, 60), {FIRST: 0, SECOND: 1, GRADIENT: 0})
    assert keep_apart(schedule, region) == region
    assert keep_apart(schedule, Region((80,), {FIRST: 0, SECOND: 0})).pieces == {FIRST: 0}


def test_a_block_that_would_meet_another_leaves_the_region(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    planned = plan_region(schedule)
    assert keep_apart(schedule, planned) == planned
    crowded = Region((100,), dict.fromkeys(planned.pieces, 0))
    kept = keep_apart(schedule, crowded)
    assert min(planned.pieces) in kept.pieces
    assert kept.pieces.keys() < planned.pieces.keys()
    fixed = migrating(graph, region=kept)
    validate(fixed)


def test_joined_regions_have_the_pieces_of_all() -> None:
    joined = join_regions(Region((80, 60), {1: 1}), Region((), {}), Region((40,), {2: 0}))
    assert joined == Region((80, 60, 40), {1: 1, 2: 2})
