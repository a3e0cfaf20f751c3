"""Tasks are measured on made-up arguments that their operators take."""

import pytest
import torch
from torch import nn

from membench.capture.capture import capture
from membench.cost.measured import MeasuredCost
from membench.errors import UnsupportedModel
from membench.workload import Workload
from tests.contract.test_layers import Layer


def _measure(function: object) -> None:
    module = Layer(function, inner=nn.Linear(3, 3))  # type: ignore[arg-type]
    work = Workload("net", module, torch.sum, (torch.randn(3, 3),))
    MeasuredCost(torch.device("cpu")).annotate(capture(work).graph)


def test_an_operator_that_takes_no_zeros_is_measured_on_ones() -> None:
    _measure(lambda m, inputs: m.inner(inputs) + torch.multinomial(inputs.softmax(1), 1))
    _measure(lambda m, inputs: torch.linalg.solve(torch.eye(3) + m.inner(inputs), inputs))


def test_an_operator_that_takes_neither_is_refused_by_layer() -> None:
    lengths = torch.tensor([2, 1])  # their sum is the size of what they divide
    with pytest.raises(
        UnsupportedModel, match="'segment_reduce' is not .* cannot be measured on made-up data"
    ):
        _measure(lambda m, inputs: torch.segment_reduce(m.inner(inputs), "sum", lengths=lengths))
