"""Memory of networks under MXNet, counted from first principles, without fitted constants."""

import pytest
from torch import nn

from membench.core.graph.task_graph import Kind, Phase, Role, TaskGraph
from membench.core.hardware.efficiency import Efficiency
from membench.core.units import GIB, MIB
from membench.frameworks.autotuner import Autotuner
from membench.frameworks.mxnet import MXNet
from membench.planning.checking.validate import validate
from membench.strategies.eager import Eager
from tests.helpers.planning.graphs import COST, Residual, captured, captured_model, held, names, sizes, tasks_of

MXNET = MXNet(Efficiency(1.0, 1.0), context_bytes=0, autotuner=Autotuner(0, {"implicit_gemm": 1.0}))
MAP_BYTES = 4 * 2 * 4 * 2 * 2


@pytest.fixture(scope="module")
def residual() -> TaskGraph:
    return MXNET.lower(captured(Residual(), 2, 3, 2, 2))


def test_activation_over_cudnn_keeps_input_and_output(residual: TaskGraph) -> None:
    assert sizes(residual, Role.ACTIVATION) == {
        **dict.fromkeys(("first:data", "second:data", "bn:data", "add:data", "relu:data", "drop:data"), MAP_BYTES),
        "classifier:data": 4 * 2 * 10,
    }  # fmt: skip
    [relu] = tasks_of(residual, "relu", Phase.BACKWARD)
    assert {"add:data", "relu:data"} < names(residual, relu.reads)


def test_the_gradient_of_an_activation_overwrites_the_incoming_gradient(residual: TaskGraph) -> None:
    [drop] = tasks_of(residual, "drop", Phase.BACKWARD)
    [relu] = tasks_of(residual, "relu", Phase.BACKWARD)
    assert names(residual, drop.writes) == names(residual, relu.writes) == {"classifier:data gradient"}
    assert not drop.creates and not relu.creates


def test_a_sum_hands_its_gradient_to_the_first_and_copies_it_for_the_second(residual: TaskGraph) -> None:
    [copy] = tasks_of(residual, "add", Phase.BACKWARD)
    assert names(residual, copy.creates) == {"add:gradient of its part"}
    assert copy.moved_bytes == 2 * MAP_BYTES
    [norm] = tasks_of(residual, "bn", Phase.BACKWARD)
    assert "classifier:data gradient" in names(residual, norm.reads)


def test_gradients_of_one_activation_are_summed_in_the_first(residual: TaskGraph) -> None:
    [total] = tasks_of(residual, "first:sum of gradients", Phase.BACKWARD)
    assert total.kind is Kind.ADD
    assert names(residual, total.reads) == {"add:gradient of its part", "second:gradient of its part"}
    assert len(total.writes) == 1 and not total.creates


def test_batch_norm_keeps_two_vectors_and_reads_its_input(residual: TaskGraph) -> None:
    inside = {name: size for name, size in sizes(residual, Role.INTERNAL).items() if name.startswith("bn")}
    assert inside == {"bn:mean": 16, "bn:inverse deviation": 16}
    [norm] = tasks_of(residual, "bn", Phase.BACKWARD)
    assert {*inside, "second:data", "bn.weight"} < names(residual, norm.reads)


def test_dropout_is_in_place_where_its_input_has_no_other_reader() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Dropout(), nn.Linear(6, 10))
    graph = MXNET.lower(captured(module, 2, 3, 2, 2))
    assert set(sizes(graph, Role.ACTIVATION)) == {"1:data", "3:data"}
    assert sizes(graph, Role.INTERNAL)["2:mask"] == 4 * 2 * 6


def test_weights_have_gradient_momentum_and_a_copy_in_the_store(residual: TaskGraph) -> None:
    assert held(residual, Role.OPTIMIZER_STATE) == 3 * held(residual, Role.WEIGHT)


def test_the_largest_workspace_is_held_for_the_whole_run() -> None:
    """Spectra of 32 x 17 complex numbers, of 2 images of 4 and of 8 channels, and of 4 x 8 filters."""
    module = nn.Sequential(nn.Conv2d(4, 8, 5), nn.Flatten(), nn.Linear(8 * 28 * 28, 10))
    graph = captured(module, 2, 4, 32, 32)
    workspace_bytes = 8 * 32 * 17 * (2 * 4 + 4 * 8 + 2 * 8)
    rates = {"implicit_gemm": 0.1, "fft": 1.0}
    for limit_bytes, expected in ((workspace_bytes, workspace_bytes), (workspace_bytes - 1, 0)):
        framework = MXNet(Efficiency(1.0, 1.0), 7, Autotuner(limit_bytes, rates))
        lowered = framework.lower(graph)
        assert lowered.overhead_bytes == 7 + expected
        assert lowered.largest_workspace_bytes == 0


def test_a_slow_algorithm_is_not_taken_at_any_limit() -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 5), nn.Flatten(), nn.Linear(8 * 28 * 28, 10))
    framework = MXNet(Efficiency(1.0, 1.0), 0, Autotuner(GIB, {"implicit_gemm": 1.0, "fft": 0.01}))
    assert framework.lower(captured(module, 2, 4, 32, 32)).overhead_bytes == 0


def test_resnet50_needs_three_activations_per_convolution_under_eager() -> None:
    """At the end of the forward pass every activation is held once; the backward pass adds little at first."""
    graph = MXNET.lower(captured_model("resnet50", 32))
    schedule = Eager().schedule(graph, COST, None)
    kept = graph.external_bytes + held(graph, Role.ACTIVATION, Role.INTERNAL)
    sums = sum(size for name, size in sizes(graph, Role.ACTIVATION).items() if name.split(":")[0].endswith("bn3"))
    assert kept - sums - 2 * 98 * MIB < schedule.peak_bytes <= kept
    validate(schedule)
