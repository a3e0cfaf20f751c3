"""A constant region: every block has a piece, and pieces are reused."""

from membench.core.task_graph import TaskGraph
from membench.planning.region import plan_region
from membench.planning.validate import validate
from tests.helpers.four_tasks import migrating


def test_a_region_holds_every_block_and_is_reused(graph: TaskGraph) -> None:
    schedule = migrating(graph)
    region = plan_region(schedule)
    assert region.piece_bytes == (
        80,
        60,
        40,
    )  # the gradient meets the second activation, then the returning first
    fixed = migrating(graph, region=region)
    validate(fixed)
    assert fixed.peak_bytes == 100 + region.total_bytes + 20 + 5
