"""Memory of networks under TensorFlow, counted from first principles, without fitted constants."""

import pytest
import torch
from torch import Tensor, nn

from membench.core.graph.task_graph import GradientOf, Phase, Role, TaskGraph
from membench.core.hardware.efficiency import Efficiency
from membench.frameworks.autotuner import Autotuner
from membench.frameworks.tensorflow import TensorFlow
from membench.planning.checking.validate import validate
from membench.strategies.best_fit import BestFit
from tests.helpers.planning.graphs import COST, Residual, captured, held, names, sizes, tasks_of

TENSORFLOW = TensorFlow(Efficiency(1.0, 1.0), context_bytes=0, autotuner=Autotuner(0, {"implicit_gemm": 1.0}))
MAP_BYTES = 4 * 2 * 4 * 2 * 2


@pytest.fixture(scope="module")
def residual() -> TaskGraph:
    return TENSORFLOW.lower(captured(Residual(), 2, 3, 2, 2))


def test_every_operator_has_an_output_of_its_own(residual: TaskGraph) -> None:
    maps = "first", "first:BiasAdd", "second", "bn", "add", "relu", "drop"
    assert sizes(residual, Role.ACTIVATION) == {
        **{f"{name}:data": MAP_BYTES for name in maps},
        "classifier:data": 4 * 2 * 10,
        "classifier:BiasAdd:data": 4 * 2 * 10,
    }


def test_a_bias_reads_its_gradient_and_hands_it_on(residual: TaskGraph) -> None:
    [bias] = tasks_of(residual, "classifier:BiasAdd", Phase.BACKWARD)
    assert bias.gradient_of is GradientOf.WEIGHT
    assert names(residual, bias.reads) == {"loss:data gradient"}
    assert names(residual, bias.creates) == {"classifier.bias:gradient"}
    weight, data = tasks_of(residual, "classifier", Phase.BACKWARD)
    assert names(residual, weight.reads) == {"loss:data gradient", "drop:data"}
    assert names(residual, data.reads) == {"loss:data gradient", "classifier.weight"}


def test_a_sum_hands_its_gradient_to_both(residual: TaskGraph) -> None:
    assert not tasks_of(residual, "add", Phase.BACKWARD)
    [norm] = tasks_of(residual, "bn", Phase.BACKWARD)
    assert "relu:data gradient" in names(residual, norm.reads)
    [total] = tasks_of(residual, "first:BiasAdd:AddN", Phase.BACKWARD)
    assert names(residual, total.reads) == {"relu:data gradient", "second:gradient of its part"}
    assert len(total.creates) == 1


def test_relu_reads_its_output_and_batch_norm_its_input(residual: TaskGraph) -> None:
    [relu] = tasks_of(residual, "relu", Phase.BACKWARD)
    assert names(residual, relu.reads) == {"relu:data", "drop:data gradient"}
    [norm] = tasks_of(residual, "bn", Phase.BACKWARD)
    assert {"bn:mean", "bn:deviation", "second:data"} < names(residual, norm.reads)
    [drop] = tasks_of(residual, "drop", Phase.BACKWARD)
    assert names(residual, drop.reads) == {"drop:mask", "classifier:data gradient"}


def test_a_convolution_in_groups_has_its_groups_copied() -> None:
    """It reads the copied input in its weight gradient as well; the copies' gradients are copies again."""
    module = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 6, 1, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10)
    )
    graph = TENSORFLOW.lower(captured(module, 2, 3, 2, 2))
    assert [task.name for task in graph.tasks if task.phase is Phase.FORWARD][2:6] == [
        "1:Split", "1", "1:Concat", "1:BiasAdd",
    ]  # fmt: skip
    split, together = sizes(graph, Role.ACTIVATION)["1:Split:data"], sizes(graph, Role.ACTIVATION)["1:Concat:data"]
    assert (split, together) == (4 * 2 * 4 * 4, 4 * 2 * 6 * 4)
    weight, data = tasks_of(graph, "1", Phase.BACKWARD)
    assert names(graph, weight.reads) == {"1:Split:data", "1:Concat:data gradient"}
    assert names(graph, data.reads) == {"1:Concat:data gradient", "1.weight"}
    for name, copied in (("1:Split", split), ("1:Concat", together)):
        assert [task.moved_bytes for task in tasks_of(graph, name, Phase.FORWARD)] == [2 * copied]
        assert [task.moved_bytes for task in tasks_of(graph, name, Phase.BACKWARD)] == [2 * copied]


def test_poolings() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 10))
    graph = TENSORFLOW.lower(captured(module, 2, 3, 4, 4))
    [largest] = tasks_of(graph, "1", Phase.BACKWARD)
    [average] = tasks_of(graph, "2", Phase.BACKWARD)
    assert names(graph, largest.reads) == {"0:BiasAdd:data", "1:data", "2:data gradient"}
    assert names(graph, average.reads) == {"4:data gradient"}


def test_a_weight_has_a_momentum_and_its_gradient_is_freed(residual: TaskGraph) -> None:
    assert held(residual, Role.OPTIMIZER_STATE) == held(residual, Role.WEIGHT)
    gradients = {name for name in sizes(residual, Role.INTERNAL) if name.endswith(":gradient")}
    assert len(gradients) == len([b for b in residual.blocks if b.role is Role.WEIGHT])
    for block in residual.blocks:
        if block.name in gradients:
            assert len([task for task in residual.tasks if block.index in {*task.reads, *task.writes}]) == 1


def test_a_shared_weight_gets_a_gradient_from_each_use() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.classifier = nn.Linear(4, 4), nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.classifier(torch.relu(self.linear(torch.relu(self.linear(x)))))

    graph = TENSORFLOW.lower(captured(Twice(), 2, 4))
    gradients = [block for block in graph.blocks if block.name == "linear.weight:gradient"]
    assert [block.size_bytes for block in gradients] == [4 * 16, 4 * 16]
    validate(BestFit().schedule(graph, COST, None))


def test_a_convolution_has_its_workspace_while_it_runs() -> None:
    """Spectra of 32 x 17 complex numbers, of 2 images of 4 and of 8 channels, and of 4 x 8 filters."""
    module = nn.Sequential(nn.Conv2d(4, 8, 5), nn.Flatten(), nn.Linear(8 * 28 * 28, 10))
    workspace_bytes = 8 * 32 * 17 * (2 * 4 + 4 * 8 + 2 * 8)
    tuner = Autotuner(workspace_bytes, {"implicit_gemm": 0.1, "fft": 1.0})
    graph = TensorFlow(Efficiency(1.0, 1.0), 7, tuner).lower(captured(module, 2, 4, 32, 32))
    assert [task.workspace_bytes for task in graph.tasks if task.convolution] == 2 * [workspace_bytes]
    assert not any(task.workspace_bytes for task in graph.tasks if not task.convolution)
    assert graph.overhead_bytes == 7
