"""Layrub's constant region: what shares a piece, and what has one of its own."""

from collections import defaultdict

import pytest

from membench.core.schedule import Reserve
from membench.core.task_graph import TaskGraph
from membench.frameworks.caffe import CAFFE
from membench.frameworks.lowering import lower_layers
from membench.planning.validate import validate
from membench.steps.plan import plan
from membench.strategies.base import Strategy
from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter
from tests.helpers.costs import UnitCost
from tests.helpers.graphs import captured_model

LARGEST_BYTES = 2 * 64 * 112 * 112 * 4
"""Of ResNet-50 at two images: the first convolution's output, and the first stage's."""


@pytest.fixture(scope="module")
def residual() -> TaskGraph:
    return lower_layers(captured_model("resnet50", 2), CAFFE)


def pieces(graph: TaskGraph, strategy: Strategy) -> dict[str, list[int]]:
    """Return the sizes of the region's pieces by what lies in them."""
    schedule = plan(graph, strategy, UnitCost(), None)
    validate(schedule)
    found = defaultdict(list)
    for instruction in schedule.instructions:
        if isinstance(instruction, Reserve):
            block = schedule.graph.blocks[instruction.block]
            found[block.name.split(":")[-1]].append(instruction.space_bytes)
    return found


def test_what_layers_keep_inside_has_one_piece_for_each_thing_kept(residual: TaskGraph) -> None:
    found = pieces(residual, LayrubHybrid(fixed_region=True))
    for kept in ("normalized", "deviations", "saved gradient", "input"):
        assert found[kept] == [LARGEST_BYTES]
    assert found["mask"] == [LARGEST_BYTES // 4]


def test_the_region_separates_activations_from_gradients_to_sum(residual: TaskGraph) -> None:
    """The published walk gives four pieces for the first, 3.5 of the largest activation together; here 3.25."""
    found = pieces(residual, LayrubHybrid(fixed_region=True))
    assert found["gradient of its part"] == [LARGEST_BYTES] * 2
    assert sum(found["data"]) == 5.25 * LARGEST_BYTES


def test_without_the_intra_layer_strategy_gradients_have_pieces_of_their_own(residual: TaskGraph) -> None:
    hybrid, inter = (pieces(residual, kind(fixed_region=True)) for kind in (LayrubHybrid, LayrubInter))
    assert not hybrid["data gradient"]
    assert LARGEST_BYTES in inter["data gradient"]


def test_what_pooling_keeps_inside_stays_on_the_device(residual: TaskGraph) -> None:
    assert "index" not in pieces(residual, LayrubHybrid(fixed_region=True))
