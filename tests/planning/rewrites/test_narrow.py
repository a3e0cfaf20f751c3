"""Index maps of max pooling in fewer bits: the same results, and as many bytes less between the passes as stated."""

import pytest
import torch
from torch import nn

from membench.core.graph.task_graph import Phase, TaskGraph
from membench.planning.checking.validate import validate
from membench.planning.rewrites.narrow import index_maps, narrow_indices
from membench.strategies.base import find_strategy
from tests.helpers.networks.contract import COST, reference
from tests.helpers.planning.chains import graph_of
from tests.helpers.steps.checks import check_results_and_peak


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alexnet", "googlenet", "squeezenet"])
def test_a_step_with_narrow_maps_gives_the_same_bits(name: str) -> None:
    case = reference(name)
    graph = COST.annotate(case.captured.graph)
    maps = index_maps(graph)
    assert maps
    schedule = find_strategy("vdnn_all")().schedule(narrow_indices(graph, COST, maps), COST, None)
    validate(schedule)
    check_results_and_peak(case, schedule)


def pooled(size: int) -> TaskGraph:
    with torch.device("meta"):
        layers = nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        return graph_of(nn.Sequential(*layers), 3, size)


@pytest.mark.parametrize(("size", "bits"), [(256, 16), (258, 32)])
def test_a_map_has_as_few_bits_as_its_largest_index_needs(size: int, bits: int) -> None:
    graph = pooled(size)
    [(block, size_bytes)] = index_maps(graph).items()
    assert size_bytes == graph.blocks[block].size_bytes * bits // 64
    plain, narrow = ((graph, index_maps(graph)), (narrow_indices(graph, COST, [block]), {block: 0}))
    assert len(narrow[0].tasks) == len(plain[0].tasks) + 2
    backward = [task for task in narrow[0].tasks if task.phase is Phase.BACKWARD]
    assert not any(block in task.reads for task in backward)
    assert [narrow[0].blocks[b].size_bytes for b in range(len(graph.blocks), len(narrow[0].blocks))] == [
        size_bytes,
        graph.blocks[block].size_bytes,
    ]


def test_only_the_given_maps_are_narrowed() -> None:
    graph = pooled(32)
    assert narrow_indices(graph, COST, []) == COST.annotate(graph)
