"""Graphs at other batches are those that a capture makes, and are refused where the module makes others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from membench.advice.device.resized import ResizedGraph
from membench.capture.capture import capture
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.workload import Workload


class _Network(nn.Module):
    def __init__(self, most: int | None = None) -> None:
        super().__init__()
        self._most = most
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.score = nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Tensor:
        features = nn.functional.dropout(self.norm(self.convolution(images)).relu(), 0.1)
        if self._most is not None and len(images) > self._most:
            features = features.tanh()
        scores: Tensor = self.score(features.mean((2, 3)))
        return scores


def _graph_at(module: nn.Module, size: int) -> TaskGraph:
    batch = torch.empty(size, 3, 8, 8, device="meta"), torch.zeros(size, dtype=torch.long, device="meta")
    return capture(Workload("network", module, nn.CrossEntropyLoss(), (batch[0],), (batch[1],))).graph


@pytest.mark.slow
@given(st.integers(1, 40), st.integers(2, 300))
@settings(max_examples=5, deadline=None)
def test_a_graph_of_another_batch_is_the_captured_one(first: int, other: int) -> None:
    module = _Network()
    resized = ResizedGraph.of(lambda size: _graph_at(module, size), first)
    assert resized is not None
    assert resized.contains(_graph_at(module, other))
    found, captured = resized.at(other), _graph_at(module, other)
    assert found.batch_size == other
    assert [block.size_bytes for block in found.blocks] == [block.size_bytes for block in captured.blocks]
    assert found.tasks == captured.tasks


def test_a_module_that_computes_otherwise_at_large_batches_is_found_out() -> None:
    module = _Network(most=20)
    resized = ResizedGraph.of(lambda size: _graph_at(module, size), 8)
    assert resized is not None
    assert resized.contains(_graph_at(module, 20)) and not resized.contains(_graph_at(module, 21))
    assert ResizedGraph.of(lambda size: _graph_at(module, size), 20) is None
