"""Costs measured on the CPU."""

import pytest
import torch

from membench.codecs.rows import csr
from membench.profiling.measured_cost import MeasuredCost
from tests.helpers.networks import reference


def test_a_measured_codec_time_is_remembered() -> None:
    cost = MeasuredCost(torch.device("cpu"))
    codec = csr()
    seconds = cost.codec_time_s(codec, 4 * 2**16, codec.size_bytes(2**16, 2**15))
    assert 0 < seconds == cost.codec_time_s(codec, 4 * 2**16, codec.size_bytes(2**16, 2**15))


def test_costs_are_of_the_kernels_that_are_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = reference("lstm_cnn").captured.graph
    kept = MeasuredCost(torch.device("cpu"))
    for is_enabled in (False, True):
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", is_enabled)
        fresh = MeasuredCost(torch.device("cpu"))
        workspaces = [task.workspace_bytes for task in fresh.annotate(graph).tasks]
        assert [task.workspace_bytes for task in kept.annotate(graph).tasks] == workspaces
