"""Costs measured on the CPU."""

from collections.abc import Hashable
from typing import Any

import pytest
import torch
from torch import nn

from membench.capture.capture import Captures
from membench.codecs.rows import csr
from membench.core.graph.call import Call, Output, Value
from membench.core.graph.task_graph import Kind, Phase, Task
from membench.core.step.workload import Workload
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.operators import OperatorCost, OutputMismatch, measure_operators
from tests.helpers.networks.contract import reference


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


def test_outputs_in_one_memory_count_once_for_each_block_that_a_task_makes_of_them() -> None:
    outputs = (Output(torch.float32, (48,), (1,), 0, 192),) * 2
    cost = OperatorCost(held_bytes=1000, time_s=0.0, outputs=outputs)
    for blocks, workspace_bytes in (((3, 3), 808), ((3, 4), 616)):
        values = tuple(Value(block, torch.float32, (48,), (1,), 0) for block in blocks)
        creates = tuple(set(blocks))
        call = Call("aten.gradients.default", (), (), values)
        task = Task(0, "", Kind.OTHER, Phase.BACKWARD, 0, (), creates, creates, call=call)
        assert cost.workspace_bytes(task) == workspace_bytes


def test_no_backward_operator_is_measured_on_a_workspace_that_was_taken_to_be_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[Phase] = []

    def noting(tasks: dict[Hashable, Task], *others: Any) -> dict[Hashable, OperatorCost]:
        measured.extend(task.phase for task in tasks.values())
        return measure_operators(tasks, *others)

    monkeypatch.setattr("membench.profiling.measured_cost.measure_operators", noting)
    monkeypatch.setattr("membench.capture.operators.lstm.lstm_workspace_bytes", lambda *_: 64)
    module = nn.LSTM(4, 5)
    work = Workload("lstm", module, lambda output: output[0].sum(), (torch.randn(7, 3, 4),))
    captures, cost = Captures(work), MeasuredCost(torch.device("cpu"))
    with pytest.raises(OutputMismatch, match="mkldnn_rnn_layer") as found:
        cost.annotate(captures.graph_at(3))
    assert Phase.FORWARD in measured and Phase.BACKWARD not in measured
    captures.learn(3, found.value.outputs)
    cost.annotate(captures.graph_at(3))
    assert Phase.BACKWARD in measured
