"""Tasks are measured on synthetic arguments that their operators take."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from membench.backends.calls.kernels import find_kernel
from membench.capture.capture import Captures, capture
from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Call
from membench.core.step.workload import Workload
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.operators import OutputMismatch
from tests.helpers.networks.contract import Layer


def _measure(function: object) -> dict[str, float]:
    """Return the seconds of each operator."""
    module = Layer(function, inner=nn.Linear(3, 3))  # type: ignore[arg-type]
    work = Workload("net", module, torch.sum, (torch.randn(3, 3),))
    cost = MeasuredCost(torch.device("cpu"))
    graph = cost.annotate(capture(work).graph)
    return {task.call.operator: cost.task_time_s(task) for task in graph.tasks if task.call}


def test_an_operator_that_takes_no_zeros_is_measured_on_ones() -> None:
    drawn = _measure(lambda m, inputs: m.inner(inputs) + torch.multinomial(inputs.softmax(1), 1))
    assert drawn["aten.multinomial.default"] > 0
    solved = _measure(lambda m, inputs: torch.linalg.solve(torch.eye(3) + m.inner(inputs), inputs))
    assert solved["aten.linalg_lu_solve.default"] > 0


def test_an_operator_that_takes_neither_is_refused_by_layer() -> None:
    lengths = torch.tensor([2, 1])  # their sum is the size of what they divide
    with pytest.raises(UnsupportedModel, match="'segment_reduce' is not .* does not run on synthetic data"):
        _measure(lambda m, inputs: torch.segment_reduce(m.inner(inputs), "sum", lengths=lengths))


def test_masks_hold_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[torch.Tensor] = []

    def recording(call: Call, device: torch.device) -> Callable[..., object]:
        kernel = find_kernel(call, device)

        def run(*args: object, **kwargs: object) -> object:
            masks.extend(arg for arg in args if isinstance(arg, torch.Tensor) and arg.dtype is torch.bool)
            return kernel(*args, **kwargs)

        return run

    monkeypatch.setattr("membench.profiling.operators.find_kernel", recording)
    mask = torch.ones(3, 3, dtype=torch.bool)
    _measure(lambda m, inputs: m.inner(inputs).masked_fill(mask, 0.0))
    assert masks
    assert all(found.any() and not found.all() for found in masks)


def test_a_step_is_captured_again_with_what_its_operators_return() -> None:
    module = Layer(lambda m, words: m.bag(words), bag=nn.EmbeddingBag(9, 4))
    captures = Captures(Workload("net", module, torch.sum, (torch.zeros(4, 6, dtype=torch.int64),)))
    cost = MeasuredCost(torch.device("cpu"))
    with pytest.raises(OutputMismatch, match="_embedding_bag.* but its shape function predicts") as found:
        cost.annotate(captures.graph_at(4))
    assert captures.learn(4, found.value.outputs)
    cost.annotate(captures.graph_at(4))
    assert not captures.learn(4, found.value.outputs)
