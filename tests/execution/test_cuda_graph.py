"""The whole step as one CUDA graph, on a stand-in that records its calls."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from membench.backends.accelerator import AcceleratorBackend
from membench.capture.capture import capture
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.task_graph import Role
from membench.core.libraries.torch_devices import GraphPool
from membench.core.step.workload import Workload
from membench.execution import cuda_graph
from membench.execution.executor import BoundSchedule
from membench.models.digits import digits_cnn
from membench.steps.plan import plan
from membench.steps.real.compiled_step import CompiledStep
from membench.strategies.base import find_strategy
from tests.helpers.emulator.fake_accelerator import fake_accelerator
from tests.helpers.networks.contract import COST

CPU = torch.device("cpu")
POOL = GraphPool((0, 1))


class FakeGraph:
    """Records captures and replays; a replay runs what was captured again, into the memory of the capture."""

    made: list["FakeGraph"] = []  # noqa: RUF012 (emptied by the fixture)

    def __init__(self) -> None:
        self.replays = 0
        FakeGraph.made.append(self)

    def replay(self) -> None:
        self.replays += 1


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompiledStep]:
    @contextmanager
    def capturing(graph: FakeGraph, pool: GraphPool) -> Iterator[None]:
        assert pool == POOL
        yield

    FakeGraph.made = []
    torch.manual_seed(0)
    batch = torch.randn(4, 1, 8, 8), torch.randint(10, (4,))
    work = Workload("digits", digits_cnn().eval(), nn.functional.cross_entropy, batch[:1], batch[1:])
    captured = capture(work)
    schedule = plan(cuda_graph.with_staged_arguments(captured.graph), find_strategy("layrub_hybrid")(), COST, None)
    with fake_accelerator(monkeypatch):
        monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
        monkeypatch.setattr(torch.cuda, "graph", capturing)
        monkeypatch.setattr(cuda_graph, "drop_library_workspaces", lambda _: None)
        yield CompiledStep(work, captured, schedule, AcceleratorBackend(schedule, CPU), graph_pool=POOL)


def call(step: CompiledStep, arguments: Any = None) -> torch.Tensor:
    work = step.workload
    return step(work.inputs if arguments is None else arguments, work.targets)


def test_the_first_call_runs_the_second_captures_and_every_later_one_replays(step: CompiledStep) -> None:
    losses = [call(step) for _ in range(4)]
    assert [graph.replays for graph in FakeGraph.made] == [3]
    assert all(torch.equal(loss, losses[0]) for loss in losses)


def test_a_loss_and_gradients_that_the_caller_keeps_are_not_overwritten(step: CompiledStep) -> None:
    module = step.workload.module
    for _ in range(2):
        module.zero_grad(set_to_none=True)
        loss = call(step)
    graph, tensors = step.schedule.graph, step.backend.tensors
    assert graph.loss is not None
    tensors.tensor(graph.loss).zero_()
    assert loss.item() != 0
    kept = {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}
    call(step)  # without clearing: gradients add up
    for name, weight in module.named_parameters():
        assert weight.grad is not None and torch.allclose(weight.grad, 2 * kept[name], rtol=1e-4)


def test_new_data_are_copied_to_where_the_graph_reads(step: CompiledStep) -> None:
    call(step)
    call(step)
    [images] = [block.index for block in step.schedule.graph.blocks if block.role is Role.INPUT]
    own = step.backend.tensors.as_bytes(images)
    other = torch.randn(4, 1, 8, 8)
    call(step, other)
    assert torch.equal(own.view(torch.float32), other.flatten())
    assert own.data_ptr() != other.data_ptr()


def test_a_weight_that_moved_is_captured_again(step: CompiledStep) -> None:
    for _ in range(3):
        call(step)
    weight = next(iter(step.workload.module.parameters()))
    weight.data = weight.data.clone()
    call(step)
    assert [graph.replays for graph in FakeGraph.made] == [2, 1]


def test_a_step_with_a_clock_ends_the_graph_and_the_next_call_captures_again(step: CompiledStep) -> None:
    for _ in range(3):
        call(step)
    step.timeline()
    call(step)
    assert [graph.replays for graph in FakeGraph.made] == [2, 1]


def test_copies_of_the_arguments_made_for_the_graph_count(step: CompiledStep) -> None:
    work = step.workload
    plain = plan(capture(work).graph, find_strategy("layrub_hybrid")(), COST, None)
    copies_bytes = sum(argument.nbytes for argument in (*work.inputs, *work.targets))
    assert step.predicted_peak_bytes == plain.peak_bytes + copies_bytes


def test_a_schedule_in_which_the_host_waits_is_refused(step: CompiledStep) -> None:
    schedule = plan(capture(step.workload).graph, find_strategy("epmc")(), COST, None)
    backend = AcceleratorBackend(schedule, CPU)
    with pytest.raises(UnsupportedStrategy, match="'epmc' encodes.*leave cuda_graph out"):
        cuda_graph.ReplayedSchedule(BoundSchedule(schedule, backend), backend, POOL)
