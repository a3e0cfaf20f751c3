"""Which activation each gradient belongs to."""

import pytest

from membench.core.graph.task_graph import Role, TaskGraph
from membench.frameworks.caffe import CAFFE
from membench.frameworks.lowering import lower_layers
from membench.strategies.layrub.activations import Activations
from tests.helpers.planning.graphs import captured_model


@pytest.fixture(scope="module", params=["resnet50", "googlenet", "wrn28_10"])
def graph(request: pytest.FixtureRequest) -> TaskGraph:
    return lower_layers(captured_model(request.param, 1), CAFFE)


def test_every_gradient_of_a_framework_of_layers_has_its_activation(graph: TaskGraph) -> None:
    activations = Activations(graph)
    found = {**activations.of_gradients, **activations.of_parts}
    gradients = {b.index for b in graph.blocks if b.role is Role.GRADIENT}
    assert found.keys() == gradients
    assert all(graph.blocks[g].size_bytes == graph.blocks[a].size_bytes for g, a in found.items())


def test_an_activation_has_one_gradient_of_its_own_and_a_part_for_each_of_several_readers(graph: TaskGraph) -> None:
    activations = Activations(graph)
    own = list(activations.of_gradients.values())
    assert len(own) == len(set(own))
    parts = list(activations.of_parts.values())
    for block in set(parts):
        assert parts.count(block) == activations.readers[block] > 1
