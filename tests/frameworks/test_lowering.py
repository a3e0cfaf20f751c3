"""Rules of every framework of layers, and of libraries of layers that no framework has."""

from dataclasses import replace

import pytest
from torch import Tensor, nn

from membench.core import configuration
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.task_graph import Phase
from membench.core.units import GIB
from membench.cost.roofline import RooflineCost
from membench.frameworks.lowering import lower_layers
from membench.frameworks.tensorflow import ADD, RELU, TENSORFLOW
from membench.frameworks.torch7 import TORCH7
from membench.planning.checking.validate import validate
from membench.strategies.base import strategies
from membench.strategies.pytorch import PyTorch
from tests.helpers.planning.graphs import Doubling, captured, captured_model, names, tasks_of

FRAMEWORKS = ("modnn", "mxnet", "tensorflow", "torch7")
IN_PLACE = replace(
    TENSORFLOW,
    types=tuple(replace(kind, gradient_in_place=True) if kind is RELU else kind for kind in TENSORFLOW.types),
    sums_in_place=True,
)


class TwoBranches(nn.Module):
    """A sum whose inputs have no other reader, and end in a ReLU each."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.classifier = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 10)
        self.first, self.second = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.first(self.left(x)) + self.second(self.right(x)))


def test_a_gradient_shared_by_several_activations_is_not_overwritten() -> None:
    assert ADD.forwards_gradient_to == 2
    graph = lower_layers(captured(TwoBranches(), 2, 4), IN_PLACE)
    for name in ("first", "second"):
        [relu] = tasks_of(graph, name, Phase.BACKWARD)
        assert "classifier:data gradient" in names(graph, relu.reads)
        assert names(graph, relu.writes) == {f"{name}:data gradient"}


def test_gradients_are_not_accumulated_in_that_of_a_sum_with_itself() -> None:
    graph = lower_layers(captured(Doubling(), 2, 4), IN_PLACE)
    [total] = [task for task in graph.tasks if task.name.endswith("AddN")]
    assert names(graph, total.reads) == {"classifier:data gradient"}
    assert total.creates


def test_a_lowered_graph_names_the_blocks_of_weight_gradients() -> None:
    """As several devices have to, which sum them up."""
    step = captured(TwoBranches(), 2, 4)
    graph = lower_layers(step, TORCH7)
    shapes = {name: value.shape for name, value in step.gradients if value}
    assert {name: value.shape for name, value in graph.gradients if value} == shapes
    assert {graph.blocks[value.block].name for _, value in graph.gradients if value} == {
        f"{name}:gradient" for name in shapes
    }
    assert not lower_layers(step, TENSORFLOW).gradients


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        *("alexnet", "wrn16_1"),
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("cifar10_quick", "vgg16", "fcn8s", "googlenet", "resnet34")
        ),
    ],
)
def test_every_strategy_can_schedule_a_lowered_graph(model: str) -> None:
    """Validation proves that what a task reads was written before and is still held."""
    graph = captured_model(model, 2)
    for name in FRAMEWORKS:
        framework = configuration.load("framework", name)
        cost = RooflineCost(configuration.load("device", "k40m"), framework.efficiency)
        lowered = framework.lower(graph)
        for strategy in set(strategies().values()) - {PyTorch}:
            validate(strategy().schedule(lowered, cost, None))
        with pytest.raises(UnsupportedStrategy, match="another framework's"):
            PyTorch().schedule(lowered, cost, None)


@pytest.mark.parametrize("name", ["caffe", *FRAMEWORKS])
def test_there_is_a_loss_for_every_pixel(name: str) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(inplace=True), nn.Conv2d(8, 10, 1))
    graph = configuration.load("framework", name).lower(captured(module, 2, 3, 4, 4, targets=(2, 4, 4)))
    assert graph.overhead_bytes < GIB
    assert len(tasks_of(graph, "loss", Phase.LOSS)) == 1
