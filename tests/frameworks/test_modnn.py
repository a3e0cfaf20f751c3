"""Memory of networks under moDNN's framework, counted from first principles."""

import pytest

from membench.core import configuration
from membench.core.graph.task_graph import GradientOf, Phase, Role, TaskGraph
from membench.core.units import MIB
from membench.cost.roofline import RooflineCost
from membench.strategies.network_wide import NetworkWide
from tests.helpers.planning.graphs import Residual, captured, captured_model, held, names, sizes, tasks_of

MODNN = configuration.load("framework", "modnn")
COST = RooflineCost(configuration.load("device", "k40_modnn"), MODNN.efficiency)
MAP_BYTES = 4 * 2 * 4 * 2 * 2


@pytest.fixture(scope="module")
def residual() -> TaskGraph:
    return MODNN.lower(captured(Residual(), 2, 3, 2, 2))


def test_batch_norm_activations_and_dropout_have_no_output_of_their_own(residual: TaskGraph) -> None:
    assert sizes(residual, Role.ACTIVATION) == {
        **dict.fromkeys(("first:data", "second:data", "add:data"), MAP_BYTES),
        "classifier:data": 4 * 2 * 10,
    }


def test_backward_of_batch_norm_reads_its_output_and_two_vectors(residual: TaskGraph) -> None:
    [norm] = tasks_of(residual, "bn", Phase.BACKWARD)
    kept = {"bn:mean", "bn:inverse deviation"}
    assert {*kept, "second:data", "bn.weight"} < names(residual, norm.reads)
    assert all(sizes(residual, Role.INTERNAL)[name] == 4 * 4 for name in kept)


def test_a_sum_hands_its_error_to_both_branches(residual: TaskGraph) -> None:
    """Batch norm, in place otherwise, must then make an output of its own: the other branch still reads its input."""
    assert not tasks_of(residual, "add", Phase.BACKWARD)
    [norm] = tasks_of(residual, "bn", Phase.BACKWARD)
    assert names(residual, norm.creates) == {"bn:data gradient"}


def test_errors_of_several_readers_are_summed_up_in_one_of_them(residual: TaskGraph) -> None:
    [total] = tasks_of(residual, "first:sum of gradients", Phase.BACKWARD)
    assert len(total.reads) == 2 and not total.creates


def test_the_weight_increment_of_a_layer_precedes_the_error_of_the_layer_below(residual: TaskGraph) -> None:
    backward = tasks_of(residual, "second", Phase.BACKWARD)
    assert [task.gradient_of for task in backward] == [GradientOf.WEIGHT, GradientOf.DATA]
    assert held(residual, Role.OPTIMIZER_STATE) == held(residual, Role.WEIGHT)


def test_resnet34_keeps_an_activation_for_each_convolution_and_each_sum() -> None:
    """13.6 MiB of convolutions for each image, shortcuts aside: the paper's memory leaves no room for more."""
    graph = MODNN.lower(captured_model("resnet34_he", 8))
    maps = sizes(graph, Role.ACTIVATION)
    kinds = {
        kind: {name: size for name, size in maps.items() if kind in name} for kind in ("conv", "downsample", "add")
    }
    assert {kind: len(found) for kind, found in kinds.items()} == {"conv": 33, "downsample": 3, "add": 16}
    assert len(maps) == 33 + 3 + 16 + 3  # two poolings and the classifier
    assert sum(kinds["conv"].values()) / 8 / MIB == pytest.approx(13.6, abs=0.05)


def test_memory_of_the_ideal_case_is_all_activations_all_errors_and_the_largest_workspace() -> None:
    graph = MODNN.lower(captured_model("vgg16", 2))
    schedule = NetworkWide(algorithms="performance").schedule(graph, COST, None)
    blocks = sum(block.size_bytes for block in graph.blocks)
    assert schedule.peak_bytes == blocks + schedule.graph.largest_workspace_bytes
