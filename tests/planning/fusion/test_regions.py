"""Modules that are compiled one by one, and the lifetimes of blocks in them."""

import torch
from torch import nn

from membench.capture.capture import capture
from membench.core.graph.fused_calls import fused_calls_of
from membench.core.graph.task_graph import Phase, TaskGraph
from membench.core.step.kernels import WHOLE_STEP, Compiled
from membench.core.step.workload import Workload
from membench.cost.kernels import launches
from membench.planning.checking.validate import validate
from membench.planning.fusion.graph import fused
from membench.planning.fusion.layouts import becomes_channels_last
from membench.planning.fusion.regions import Regions
from membench.strategies.base import find_strategy
from tests.helpers.planning.costs import UnitCost


class Block(nn.Module):
    """A norm, a product and an activation around which the input is added."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.product = nn.LayerNorm(8), nn.Linear(8, 8, bias=False)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + nn.functional.silu(self.product(self.norm(rows)))


def step() -> TaskGraph:
    network = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.LayerNorm(8))
    return capture(
        Workload("net", network, nn.CrossEntropyLoss(), (torch.randn(4, 8),), (torch.zeros(4).long(),))
    ).graph


def test_only_tasks_of_one_compiled_module_join() -> None:
    graph, compiled = step(), Compiled(("1", "2"))
    found = fused(graph, compiled)
    of_modules = [task for task in found.tasks if task.is_compiled]
    assert {Regions(found, compiled).of(task) for task in of_modules} == {("1", ""), ("2", "")}
    assert all(task.is_compiled for task in found.tasks if fused_calls_of(task.call))
    outside = [task.name for task in found.tasks if not task.is_compiled and task.phase is Phase.FORWARD]
    assert any(name.startswith("0:") for name in outside) and any(name.startswith("3:") for name in outside)
    assert len(fused(graph).tasks) < len(found.tasks) < len(graph.tasks)


def test_graphs_end_at_modules_with_hooks() -> None:
    graph = step()
    apart = Regions(graph, WHOLE_STEP, ("1", "2"))
    regions = {apart.of(task) for task in graph.tasks if task.phase is Phase.FORWARD}
    assert regions == {("", ""), ("", "1"), ("", "2")}
    assert len(fused(graph).tasks) < len(fused(graph, apart=("1", "2")).tasks)


def test_compiled_code_gives_a_block_back_after_its_last_use() -> None:
    graph = fused(step())
    schedule = find_strategy("pytorch")().schedule(graph, UnitCost(), None)
    validate(schedule)
    assert graph.plain is not None
    last = {block: task.index for task in graph.plain.tasks for block in (*task.reads, *task.writes)}
    released = {block: task.index for task in graph.plain.tasks for block in task.releases}
    assert released and all(last[block] == index for block, index in released.items())
    eager = find_strategy("pytorch")().schedule(step(), UnitCost(), None)
    assert schedule.peak_bytes <= eager.peak_bytes
    assert sum(map(launches, graph.tasks)) < sum(map(launches, step().tasks))


def test_networks_of_wide_convolutions_become_channels_last_and_grouped_ones_do_not() -> None:
    def decided(groups: int, *, trains: bool, channels: int = 128) -> bool:
        layers = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=groups), nn.Flatten(), nn.LazyLinear(4)
        )
        images = torch.randn(2, channels, 4, 4)
        layers(images)
        loss = nn.CrossEntropyLoss() if trains else None
        targets = (torch.zeros(2).long(),) if trains else ()
        return becomes_channels_last(capture(Workload("net", layers, loss, (images,), targets)).graph)

    assert decided(1, trains=True) and decided(1, trains=False)
    assert not decided(4, trains=True) and not decided(4, trains=False)
    assert decided(128, trains=True)  # of one input each
    assert not decided(1, trains=True, channels=32) and decided(1, trains=False, channels=32)
    linear = Workload("net", nn.Linear(4, 4), None, (torch.randn(2, 4),))
    assert not becomes_channels_last(capture(linear).graph)
