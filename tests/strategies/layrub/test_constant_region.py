"""Layrub's constant region: what shares a piece, and what has one of its own."""

from collections import defaultdict

import pytest

from membench.core.graph.schedule import Free, Reserve
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.hardware.efficiency import Efficiency
from membench.frameworks.caffe import CAFFE, Caffe
from membench.frameworks.lowering import lower_layers
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import peak_bytes
from membench.planning.region import keep_apart
from membench.steps.plan import plan
from membench.strategies.base import Strategy
from membench.strategies.layrub.activations import Activations
from membench.strategies.layrub.constant_region import walk
from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter
from tests.helpers.planning.costs import UnitCost
from tests.helpers.planning.graphs import captured_model

LARGEST_BYTES = 2 * 64 * 112 * 112 * 4
"""Of ResNet-50 at two images: the first convolution's output, and the first stage's."""
MAPS = frozenset({Role.ACTIVATION, Role.GRADIENT})
PUBLISHED = [
    ("lenet", [3200, 11520, 2880], []),
    ("cifar10_quick", [8192, 32768, 8192], []),
    ("alexnet", [154587, 290400, 290400], []),
    ("vgg16", [802816, 3211264, 3211264], []),
    ("googlenet", [602112, 802816, 602112, 100352, 376320, 200704, 163072, 103488], [150528, 200704]),
    ("resnet34", [200704, 802816, 200704, 200704], [200704, 200704]),
    ("resnet50", [802816, 802816, 401408, 802816], [802816, 802816]),
    ("resnet56_layrub", [16384, 16384, 16384, 16384], [16384, 16384]),
    ("wrn28_10_layrub", [163840, 163840, 163840, 163840], [163840, 163840]),
]
"""Network, pieces that outputs take in turn, and the two of outputs with several readers."""


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


def test_the_published_walk_of_resnet50(residual: TaskGraph) -> None:
    """343 MiB at 32 images for outputs in turn, and 98 for each of two pieces of outputs with several readers."""
    sizes = walk(Activations(residual)).piece_bytes
    assert sum(sizes[:-2]) == 3.5 * LARGEST_BYTES
    assert sizes[-2:] == (LARGEST_BYTES, LARGEST_BYTES)


@pytest.mark.parametrize(("name", "in_turn", "shared"), PUBLISHED)
def test_pieces_are_those_of_the_published_definitions(name: str, in_turn: list[int], shared: list[int]) -> None:
    """Simulated from the definitions that Layrub's authors published, in elements of one image."""
    sizes = walk(Activations(lower_layers(captured_model(name, 2), CAFFE))).piece_bytes
    assert [size // 8 for size in sizes] == [*in_turn, *shared]


@pytest.mark.parametrize("name", ["wrn28_10_layrub", "resnet56_layrub"])
def test_a_first_map_with_two_readers_meets_no_other_map(name: str) -> None:
    schedule = plan(lower_layers(captured_model(name, 2), CAFFE), LayrubHybrid(only_needed=False), UnitCost(), None)
    activations = Activations(schedule.graph)
    region = walk(activations)
    first = activations.made[0][0]
    assert activations.readers[first] == 2
    assert region.pieces[first] == 1  # behind the batch's, where the walk comes to it
    assert keep_apart(schedule, region) == region


def test_the_walk_hands_a_piece_on_two_layers_after_its_output() -> None:
    chain = lower_layers(captured_model("vgg16", 1), CAFFE)
    activations = Activations(chain)
    pieces = walk(activations).pieces
    turns = [pieces[block] for made in activations.made for block in made]
    assert len(set(turns)) == 3
    assert all(len(set(turns[i : i + 3])) == 3 for i in range(len(turns) - 2))


def test_hybrid_holds_what_the_paper_prints_for_resnet50(residual: TaskGraph) -> None:
    """759.5 MB at 32 images (Section 5.2.1)."""
    schedule = plan(residual, LayrubHybrid(fixed_region=True, only_needed=False), UnitCost(), None)
    assert peak_bytes(schedule, MAPS) * 16 == 759.5 * 2**20


def test_hybrid_needs_the_mask_in_addition_to_inter_for_googlenet() -> None:
    """24 MB at 32 images (Section 5.2.3): local response normalisation reads what the gradients would overwrite."""
    graph = lower_layers(captured_model("googlenet", 2), CAFFE)
    hybrid, inter = (
        peak_bytes(plan(graph, kind(fixed_region=True, only_needed=False), UnitCost(), None), MAPS)
        for kind in (LayrubHybrid, LayrubInter)
    )
    assert (hybrid - inter) * 16 == 24.5 * 2**20


def test_gradients_lie_in_the_region_only_with_the_intra_layer_strategy(residual: TaskGraph) -> None:
    hybrid, inter = (plan(residual, kind(fixed_region=True), UnitCost(), None) for kind in (LayrubHybrid, LayrubInter))
    gradients = Activations(hybrid.graph).of_gradients
    in_hybrid, in_inter = (
        sum(isinstance(x, Free) and x.block in gradients for x in s.instructions) for s in (hybrid, inter)
    )
    assert in_inter == len(gradients)
    assert in_hybrid <= len(walk(Activations(hybrid.graph)).piece_bytes)  # what pieces hold at the end of the step


@pytest.mark.parametrize(("name", "is_shared"), [("alexnet", True), ("vgg16", False)])
def test_a_prefetched_batch_as_large_as_the_first_piece_serves_as_it(name: str, is_shared: bool) -> None:
    caffe = Caffe(Efficiency(1.0, 1.0), context_bytes=0, group_bytes=0, prefetched_batches=4, rounds_allocations=False)
    graph = caffe.lower(captured_model(name, 2))
    [batch] = [block for block in graph.blocks if block.role is Role.INPUT]
    schedule = plan(graph, LayrubHybrid(fixed_region=True, only_needed=False), UnitCost(), None)
    validate(schedule)
    assert graph.overhead_bytes - schedule.graph.overhead_bytes == (batch.size_bytes if is_shared else 0)


def test_what_pooling_keeps_inside_stays_on_the_device(residual: TaskGraph) -> None:
    assert "index" not in pieces(residual, LayrubHybrid(fixed_region=True))
