"""Modules by name: what they make leaves or is recomputed, what they hand on, and names that there are not."""

from collections.abc import Collection

import pytest
from torchvision.models.vision_transformer import VisionTransformer

from membench.core.errors import MembenchError, UnsupportedStrategy
from membench.core.graph.schedule import Offload, Schedule
from membench.core.graph.task_graph import RECOMPUTED_SUFFIX, TaskGraph
from membench.steps.plan import plan
from membench.strategies.by_module import ByModule
from tests.helpers.planning.chains import graph_of
from tests.helpers.planning.costs import UnitCost


class FastLink(UnitCost):
    """Copies that take no longer than a task."""

    def offload_time_s(self, size_bytes: int) -> float:
        return size_bytes / 100_000

    def prefetch_time_s(self, size_bytes: int) -> float:
        return size_bytes / 100_000


LAYER = "encoder.layers.encoder_layer_"
LAYERS = f"{LAYER}*"


@pytest.fixture(scope="module")
def graph() -> TaskGraph:
    return graph_of(VisionTransformer(32, 8, 4, 4, 48, 96, num_classes=3), 3, 32)


def planned(graph: TaskGraph, offload: Collection[str] = (), recompute: Collection[str] = ()) -> Schedule:
    return plan(graph, ByModule(offload, recompute), FastLink(), None)


def left(schedule: Schedule) -> set[str]:
    return {schedule.graph.blocks[each.block].name for each in schedule.instructions if isinstance(each, Offload)}


def recomputed(schedule: Schedule) -> set[str]:
    names = (block.name for block in schedule.graph.blocks)
    return {name.removesuffix(RECOMPUTED_SUFFIX) for name in names if name.endswith(RECOMPUTED_SUFFIX)}


def test_without_names_everything_stays(graph: TaskGraph) -> None:
    schedule = planned(graph)
    assert not left(schedule) and not recomputed(schedule)


def test_what_named_modules_make_leaves(graph: TaskGraph) -> None:
    schedule = planned(graph, offload=[f"{LAYERS}.mlp.[01]", f"{LAYER}1.ln_2"])
    modules = {name.partition(":")[0] for name in left(schedule)}
    assert modules == {f"{LAYER}{n}.mlp.{part}" for n in range(4) for part in (0, 1)} | {f"{LAYER}1.ln_2"}
    assert not recomputed(schedule)


def test_a_recomputed_module_keeps_what_it_hands_on_to_another_one(graph: TaskGraph) -> None:
    kept, schedule = planned(graph), planned(graph, recompute=[LAYERS])
    assert recomputed(schedule) and all(name.startswith(LAYER) for name in recomputed(schedule))
    outputs = [f"{LAYER}{n}.add#2:add" for n in range(4)]
    assert recomputed(schedule).intersection(outputs) == {outputs[-1]}  # the others' readers are recomputed as well
    assert not left(schedule)
    assert schedule.peak_bytes < kept.peak_bytes


def test_under_both_options_a_module_is_recomputed_from_what_has_left(graph: TaskGraph) -> None:
    alone, both = planned(graph, recompute=[LAYERS]), planned(graph, offload=[LAYERS], recompute=[LAYERS])
    assert recomputed(both) == recomputed(alone)
    assert {f"{LAYER}{n}.add#2:add" for n in range(3)} <= left(both)
    assert left(both).isdisjoint(recomputed(both))


def test_of_several_names_around_an_activation_the_innermost_counts(graph: TaskGraph) -> None:
    attention, inner = f"{LAYERS}.self_attention", f"{LAYERS}.mlp.1"
    selective = planned(graph, offload=[attention], recompute=[LAYERS])
    assert left(selective) and all(".self_attention" in name for name in left(selective))
    assert recomputed(selective) and not any(".self_attention" in name for name in recomputed(selective))
    other = planned(graph, offload=[LAYERS], recompute=[inner])
    assert {name.partition(":")[0] for name in recomputed(other)} == {f"{LAYER}{n}.mlp.1" for n in range(4)}
    assert any(".self_attention" in name for name in left(other))


@pytest.mark.parametrize("option", ["offload", "recompute"])
def test_a_name_of_no_module_is_refused_with_near_ones(graph: TaskGraph, option: str) -> None:
    with pytest.raises(UnsupportedStrategy, match=r"module 'encoder.layer.\*' is not known; did you mean"):
        planned(graph, **{option: ["encoder.layer.*"]})
    with pytest.raises(UnsupportedStrategy, match="module 'ln_1' is not known"):  # a path is given from the root
        planned(graph, **{option: ["ln_1"]})


def test_a_single_name_is_not_a_list_of_letters() -> None:
    with pytest.raises(MembenchError, match="offload is a list of paths of modules"):
        ByModule(offload="encoder")
