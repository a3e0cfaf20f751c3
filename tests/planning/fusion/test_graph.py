"""Fused graphs: the bits of the operators that they consist of and the stated peak."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.conformance.networks import NETWORKS
from membench.conformance.steps import check_exact
from membench.core.graph.fused_calls import fused_calls_of
from membench.core.graph.task_graph import Phase, Role, Task, TaskGraph
from membench.core.step.workload import Workload
from membench.planning.checking.validate import validate
from membench.planning.fusion.graph import fused
from membench.planning.fusion.operators import is_cheap, is_fusible
from membench.planning.fusion.recomputation import recompute_in_kernels
from membench.strategies.base import find_strategy
from tests.helpers.kernels.compiled_functions import without_compiler
from tests.helpers.networks.contract import COST, reference
from tests.helpers.planning.costs import UnitCost
from tests.helpers.steps.checks import check_results_and_peak, step_of

QUICK = ("densenet", "mobilenet_v3", "vit")


@pytest.fixture
def one_by_one(tmp_path: Path) -> Iterator[None]:
    with without_compiler(tmp_path):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("name", QUICK)
def test_a_fused_step_has_the_bits_of_its_operators(name: str) -> None:
    case = reference(name)
    graph = fused(case.captured.graph)
    assert len(graph.tasks) < 0.8 * len(case.captured.graph.tasks)
    schedule = find_strategy("eager")().schedule(graph, UnitCost(), None)
    validate(schedule)
    with step_of(case, schedule, chaos=None) as step:
        check_exact(case, step)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("name", NETWORKS)
def test_fused_steps_of_all_networks_have_the_stated_peak(name: str) -> None:
    case = reference(name)
    schedule = find_strategy("eager")().schedule(COST.annotate(fused(case.captured.graph)), COST, None)
    validate(schedule)
    check_results_and_peak(case, schedule)


def names(task: Task) -> str:
    """Return a task's operator, or those of its program, joined by ``+``."""
    program = fused_calls_of(task.call)
    calls = program.calls if program else (task.call,)
    return "+".join(call.operator.split(".")[1] for call in calls if call is not None)


class Residual(nn.Module):
    """A block with two convolutions around which its input is added."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(4, 4, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))

    def forward(self, images: Tensor) -> Tensor:
        inner = self.norms[0](self.first(images)).relu()
        return (self.norms[1](self.second(inner)) + images).relu()


def step_graph(
    module: nn.Module, loss: Callable[..., Tensor] = lambda output: output.sum(), size: int = 4
) -> TaskGraph:
    return capture(Workload("a network", module, loss, (torch.randn(2, 4, size, size),))).graph


def test_normalizations_take_their_sums_and_relus_and_gradients_theirs() -> None:
    found = [names(task) for task in fused(step_graph(Residual())).tasks]
    assert [name for name in found if name not in ("add_", "add", "sum")] == [
        "convolution", "native_batch_norm+relu", "convolution", "native_batch_norm+add+relu",
        "ones_like+threshold_backward+native_batch_norm_backward", "convolution_backward", "convolution_backward",
        "threshold_backward+native_batch_norm_backward", "convolution_backward",
    ]  # fmt: skip


def test_blocks_within_a_group_are_gone() -> None:
    before = step_graph(Residual())
    after = fused(before)
    made = [{block for task in graph.tasks for block in task.creates} for graph in (before, after)]
    assert made[1] < made[0]
    touched = {block for task in after.tasks for block in (*task.reads, *task.writes)}
    assert touched.isdisjoint(made[0] - made[1])


class Gated(nn.Module):
    """A gated product, as in Llama's MLP; autograd keeps the gate's activation."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.rise, self.fall = (nn.Linear(4, 4, bias=False) for _ in range(3))

    def forward(self, rows: Tensor) -> Tensor:
        return self.fall(nn.functional.silu(self.gate(rows)) * self.rise(rows))


def test_a_cheap_result_that_only_kernels_of_the_backward_pass_read_is_not_kept() -> None:
    found = [names(task) for task in fused(step_graph(Gated())).tasks]
    assert "silu+mul" in found and any(name.startswith("silu+mul+mul+silu_backward") for name in found)


def test_the_program_keeps_a_concatenation_for_the_backward_pass_and_strategies_do_not() -> None:
    graph = fused(reference("densenet").captured.graph)
    assert graph.plain is not None

    def kept_bytes(one: TaskGraph) -> int:
        concatenated = {
            block
            for task in one.tasks
            if task.phase is Phase.FORWARD and "cat" in names(task)
            for block in task.creates
        }
        return sum(
            one.blocks[block].size_bytes
            for task in one.tasks
            if task.phase is Phase.BACKWARD
            for block in concatenated.intersection(task.reads)
        )

    assert kept_bytes(graph) < kept_bytes(graph.plain)


def test_what_kernels_compute_again_is_not_taken_for_recomputation_by_a_strategy() -> None:
    before = step_graph(Gated())
    after = recompute_in_kernels(before, lambda task: is_fusible(task, before), is_cheap)
    assert len(after.tasks) > len(before.tasks)
    assert not any(task.is_recomputed for task in after.tasks)


def test_random_numbers_and_counters_of_the_caller_stay_tasks_of_their_own() -> None:
    network = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(4, 4, 1))
    graph = fused(step_graph(network))
    assert all(fused_calls_of(task.call) is None for task in graph.tasks if task.random)
    [counter] = [task for task in graph.tasks if any("num_batches" in graph.blocks[b].name for b in task.writes)]
    assert fused_calls_of(counter.call) is None


@pytest.mark.parametrize("in_place", [False, True])
def test_the_gradient_of_a_clamp_reads_its_result_and_the_argument_is_not_kept(in_place: bool) -> None:
    network = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU6(in_place), nn.Conv2d(4, 4, 1))
    graph = fused(step_graph(network))
    [backward] = [task for task in graph.tasks if "hardtanh_backward" in names(task)]
    activations = [graph.blocks[block] for block in backward.reads if graph.blocks[block].role is Role.ACTIVATION]
    large = [block for block in activations if block.size_bytes == 2 * 4 * 4 * 4 * 4]
    assert len(large) == 2  # what batch norm has taken, and the clamp's result, which the convolution reads as well
    assert not any("clone" in names(task) for task in graph.tasks)


def test_the_gradient_of_a_clamp_whose_result_is_overwritten_reads_the_argument() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(4, 4, 1)

        def forward(self, images: Tensor) -> Tensor:
            return nn.functional.hardtanh(self.layer(images)).mul_(2)

    graph = fused(step_graph(Doubled()))
    [backward] = [task for task in graph.tasks if "hardtanh_backward" in names(task)]
    assert any("convolution" in graph.blocks[block].name for block in backward.reads)
