"""Eager: what PyTorch itself does, no more calls than it makes."""

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.models.densenet import DenseNet

from membench.capture.capture import capture
from membench.conformance.results import Reference, reference_of
from membench.core.graph.task_graph import Kind, Phase
from membench.core.step.workload import Workload
from membench.steps.plan import plan
from membench.strategies.eager import Eager
from tests.helpers.networks.contract import COST, Layer
from tests.helpers.networks.random_networks import PLANS, random_reference


def test_the_backward_of_a_convolution_is_one_call() -> None:
    """In DenseNet gradients of other activations are added up between a convolution's weight and data gradient."""
    module = DenseNet(growth_rate=4, block_config=(3, 2), num_init_features=8, num_classes=4)
    inputs, targets = torch.zeros(2, 3, 64, 64), torch.zeros(2, dtype=torch.long)
    graph = capture(Workload("densenet", module, nn.functional.cross_entropy, (inputs,), (targets,))).graph
    tasks = Eager().schedule(COST.annotate(graph), COST, None).graph.tasks
    phases = [task.phase for task in tasks if task.kind == Kind.CONVOLUTION]
    assert phases.count(Phase.BACKWARD) == phases.count(Phase.FORWARD)
    assert [task.index for task in tasks] == list(range(len(tasks)))


def check_peak(case: Reference) -> None:
    schedule = plan(case.captured.graph, Eager(), COST, None)
    assert schedule.peak_bytes - schedule.graph.external_bytes <= case.peak_bytes


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layers=PLANS, seed=st.integers(0, 1000))
@example(layers=[("normalized", 1, 7), ("normalized", 7, 2), ("dropout", 1, 1)], seed=0)
def test_random_networks_hold_no_more_than_in_plain_pytorch(layers: list[tuple[str, int, int]], seed: int) -> None:
    check_peak(random_reference(layers, seed))


def permuted(self: Layer, inputs: Tensor) -> Tensor:
    hidden: Tensor = self.first(inputs)
    return self.last(hidden[torch.arange(24).flip(0)])  # type: ignore[no-any-return]


def embedded(self: Layer, inputs: Tensor) -> Tensor:
    return inputs + self.table[torch.arange(24) % 5]  # type: ignore[no-any-return]


@pytest.mark.parametrize("function", [permuted, embedded])
def test_gradients_of_indexed_tensors_are_added_up_in_place(function: object) -> None:
    module = Layer(
        function,  # type: ignore[arg-type]
        first=nn.Linear(8, 64),
        last=nn.Linear(64, 8),
        table=nn.Parameter(torch.randn(500, 8)),
    )
    arguments = (torch.randn(24, 8),), (torch.randint(8, (24,)),)
    case = reference_of(Workload("indexed", module, nn.functional.cross_entropy, *arguments))
    operators = [task.call.operator for task in case.captured.graph.tasks if task.call]
    assert "aten.index_put_.default" in operators and "aten.index_put.default" not in operators
    check_peak(case)
