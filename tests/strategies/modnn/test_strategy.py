"""moDNN: any budget down to the lower bound, on virtual time and for real; the simulation is the schedule's."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from membench.backends.cpu import CpuBackend
from membench.capture.capture import Captures, capture
from membench.conformance.networks import workload_of
from membench.conformance.results import Reference, Results, run_step
from membench.core import configuration
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Offload, Prefetch, RepeatedSchedule, Schedule
from membench.core.graph.task_graph import ARGUMENT_ROLES, Kind, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.step.workload import Workload
from membench.core.units import GIB
from membench.cost.roofline import RooflineCost
from membench.execution.measurement import cpu_peak_bytes
from membench.models.lstm import SequenceLoss
from membench.planning.algorithms import Preference, prefer
from membench.planning.checking.validate import validate
from membench.planning.pool import aligned
from membench.planning.rewrites.micro_batch import FASTEST, FITTED, window_bytes
from membench.steps.compile import build_step
from membench.steps.plan import StepPlanner
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.request import StepRequest
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import Strategy
from membench.strategies.eager import Eager
from membench.strategies.layrub.strategy import LayrubHybrid
from membench.strategies.modnn.strategy import Modnn, _Simulation
from membench.strategies.vdnn import VdnnDyn
from membench.sweep.cells.model import Model
from tests.helpers.devices import DEVICE
from tests.helpers.networks.contract import COST, reference
from tests.helpers.planning.chains import chain_of_kinds
from tests.helpers.planning.costs import TwoAlgorithmCost, UnitCost

BATCH_SIZE = 16


def lower_bound_bytes(graph: TaskGraph, cost: CostModel) -> int:
    """Equation 7 by its definition, in the pool's alignment."""
    smallest = prefer(graph, cost, Preference.MEMORY)
    needs = []
    for task in smallest.tasks:
        sizes = [smallest.blocks[b].size_bytes for b in {*task.reads, *task.writes} if smallest.blocks[b].is_transient]
        needs.append(sum(map(aligned, (*sizes, task.workspace_bytes))))
    return max(needs) + smallest.external_bytes + smallest.result_bytes


def budgets(graph: TaskGraph, cost: CostModel, count: int) -> list[int]:
    """Return budgets from the lower bound to what the step needs without one."""
    low, high = lower_bound_bytes(graph, cost), Modnn().schedule(graph, cost, None).peak_bytes
    return [low + (high - low) * number // (count - 1) for number in range(count)]


NETWORK = chain_of_kinds(*[Kind.CONVOLUTION, Kind.RELU, Kind.POOLING] * 4)


class SlowLink(TwoAlgorithmCost):
    """Moving an activation takes longer than any workspace gains."""

    def offload_time_s(self, size_bytes: int) -> float:
        return 10.0 * size_bytes


def time_s(schedule: Schedule, cost: CostModel) -> float:
    return simulated_step((RepeatedSchedule(schedule),), cost).step_time_s


@pytest.mark.parametrize("number", range(12))
def test_every_budget_from_the_lower_bound_on_is_kept(number: int) -> None:
    budget_bytes = budgets(NETWORK, TwoAlgorithmCost(), 12)[number]
    schedule = Modnn().schedule(NETWORK, TwoAlgorithmCost(), budget_bytes)
    validate(schedule, budget_bytes=budget_bytes)
    blocks = [item.block for item in schedule.instructions if isinstance(item, Offload)]
    assert len(blocks) == len(set(blocks))


def test_a_budget_below_the_lower_bound_is_refused_with_the_needed_bytes() -> None:
    bound_bytes = lower_bound_bytes(NETWORK, TwoAlgorithmCost())
    with pytest.raises(InfeasibleSchedule) as refusal:
        Modnn().schedule(NETWORK, TwoAlgorithmCost(), bound_bytes - 1)
    assert refusal.value.needed_bytes == bound_bytes


def test_without_a_limit_nothing_moves_and_every_convolution_is_fast() -> None:
    schedule = Modnn().schedule(NETWORK, TwoAlgorithmCost(), None)
    assert not any(isinstance(item, Offload | Prefetch) for item in schedule.instructions)
    assert {t.algorithm for t in schedule.graph.tasks if t.convolution} == {"fast"}
    assert time_s(schedule, TwoAlgorithmCost()) == sum(
        TwoAlgorithmCost().task_time_s(task) + TwoAlgorithmCost().launch_time_s(task) for task in schedule.graph.tasks
    )


@cache
def decoder() -> TaskGraph:
    """Twenty-four layers of a transformer, on meta tensors."""
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(
            64, 4, 256, dropout=0.0, activation="gelu", norm_first=True, batch_first=True
        )
        layers = nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)
        module = nn.Sequential(nn.Embedding(500, 64), layers, nn.Linear(64, 500))
        arguments = (torch.zeros(4, 32, dtype=torch.long),), (torch.zeros(4, 32, dtype=torch.long),)
    return capture(Workload("decoder", module, SequenceLoss(), *arguments)).graph


@pytest.mark.parametrize("percent", [None, 100, 105, 110, 150])
def test_with_room_it_holds_no_more_than_eager(percent: int | None) -> None:
    for graph in (decoder(), COST.annotate(reference("squeezenet").captured.graph), NETWORK):
        cost = UnitCost()
        eager_bytes = Eager().schedule(graph, cost, None).peak_bytes
        budget_bytes = percent and eager_bytes * percent // 100
        schedule = Modnn().schedule(graph, cost, budget_bytes)
        assert schedule.peak_bytes <= eager_bytes
        assert not any(isinstance(item, Offload) for item in schedule.instructions)


def test_a_batch_that_has_room_whole_is_not_refused_for_what_micro_batches_add() -> None:
    """A micro-batch holds each gradient twice: its own and the sum."""
    cost = on_a_k40()
    graph_at = cache(Captures(workload_of("alexnet", DEVICE, BATCH_SIZE)).graph_at)
    needed_bytes = StepPlanner(graph_at, BATCH_SIZE, Modnn(), cost).within(None)[0].schedule.peak_bytes
    [run] = StepPlanner(graph_at, BATCH_SIZE, Modnn(), cost).within(needed_bytes)
    assert run.schedule.peak_bytes <= needed_bytes


def test_a_workspace_that_delays_more_than_it_gains_is_not_given() -> None:
    bound_bytes = lower_bound_bytes(NETWORK, TwoAlgorithmCost())
    slow_times_s = [
        time_s(Modnn().schedule(NETWORK, SlowLink(), bound_bytes + extra), SlowLink()) for extra in (0, 512)
    ]
    schedule = Modnn().schedule(NETWORK, SlowLink(), bound_bytes)
    algorithms = [task.algorithm for task in schedule.graph.tasks if task.convolution]
    assert "small" in algorithms
    assert slow_times_s == sorted(slow_times_s, reverse=True)


def test_a_task_waits_only_for_the_transfers_that_it_depends_on() -> None:
    schedule = Modnn().schedule(NETWORK, UnitCost(), budgets(NETWORK, UnitCost(), 3)[1])
    text = str(schedule)
    assert "synchronize" not in text
    assert any(isinstance(item, Offload) for item in schedule.instructions)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["squeezenet", "resnet18", "densenet"])
def test_budgets_are_kept_on_the_cpu_with_the_bits_of_eager(network: str) -> None:
    case = reference(network)
    graph = COST.annotate(case.captured.graph)
    for budget_bytes in budgets(graph, COST, 4)[:3]:
        check_for_real(case, Modnn().schedule(graph, COST, budget_bytes), budget_bytes)


def check_for_real(case: Reference, schedule: Schedule, budget_bytes: int) -> None:
    validate(schedule, budget_bytes=budget_bytes)
    step = CompiledStep(case.work, case.captured, schedule, CpuBackend(schedule.graph))
    results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
    assert case.results.difference(results) == ""
    peak_bytes = cpu_peak_bytes(lambda: step(case.work.inputs, case.work.targets))
    case.work.module.zero_grad(set_to_none=True)
    assert schedule.graph.external_bytes + peak_bytes == schedule.peak_bytes <= budget_bytes
    step.close()


def on_a_k40(*, full_duplex: bool = True) -> CostModel:
    device = replace(configuration.load("device", "k40_modnn"), full_duplex=full_duplex)
    return RooflineCost(device, configuration.load("framework", "modnn").efficiency)


EIGHT = ("alexnet", "lstm", "resnet18", "densenet", "googlenet", "shufflenet", "squeezenet", "vgg11_bn")


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", [pytest.param(name, marks=pytest.mark.exhaustive if name in EIGHT[3:] else ()) for name in EIGHT]
)
def test_more_memory_never_costs_time(network: str) -> None:
    """Twelve budgets from the lower bound of one sample to what Equation 8 counts for the whole batch."""
    cost = on_a_k40()
    graph_at = cache(Captures(workload_of(network, DEVICE, BATCH_SIZE)).graph_at)
    low = lower_bound_bytes(cost.annotate(graph_at(1)), cost)
    high = window_bytes(prefer(cost.annotate(graph_at(BATCH_SIZE)), cost, Preference.PERFORMANCE))
    times_s = []
    for number in range(12):
        budget_bytes = int(low * (high / low) ** (number / 11)) + 1
        parts = StepPlanner(graph_at, BATCH_SIZE, Modnn(), cost).within(budget_bytes)
        assert all(part.schedule.peak_bytes <= budget_bytes for part in parts)
        times_s.append(simulated_step(parts, cost).step_time_s)
    assert times_s == sorted(times_s, reverse=True)


PAPERS_BATCH_SIZES = {"fcn8s": 128, "vgg16": 256, "vgg19": 256, "vgg101": 128, "resnet34_he": 256, "resnet152": 256}


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [pytest.param(m, marks=() if m in ("fcn8s", "vgg16") else pytest.mark.exhaustive) for m in PAPERS_BATCH_SIZES],
)
def test_it_is_not_slower_than_vdnn_and_layrub_within_the_same_budget(model: str) -> None:
    """FCN within 4 GB: room for FFT's workspace in its first fully connected layer takes moving a small activation."""
    cost = on_a_k40()
    batch_size = PAPERS_BATCH_SIZES[model]
    captures = Captures(Model.named(model).workload(batch_size, seed=0, device="meta"))
    framework = configuration.load("framework", "modnn")
    graph_at = cache(lambda size: framework.lower(captures.graph_at(size)))

    def step_time_s(strategy: Strategy, budget_gib: int, micro_batch: str | None) -> float:
        try:
            parts = StepPlanner(graph_at, batch_size, strategy, cost, micro_batch=micro_batch).within(budget_gib * GIB)
        except InfeasibleSchedule:
            return inf
        return simulated_step(parts, cost).step_time_s

    for budget_gib in (3, 4, 6, 12):
        others_s = [step_time_s(other, budget_gib, FITTED) for other in (VdnnDyn(["all"]), LayrubHybrid())]
        assert step_time_s(Modnn(), budget_gib, None) <= min(others_s)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Modnn(), VdnnDyn(["all"]), LayrubHybrid()], ids=lambda strategy: strategy.name)
def test_the_fastest_micro_batch_is_never_slower_than_the_fitted_one(strategy: Strategy) -> None:
    cost = on_a_k40()
    graph_at = cache(Captures(workload_of("squeezenet", DEVICE, BATCH_SIZE)).graph_at)
    low = StepPlanner(graph_at, BATCH_SIZE, strategy, cost, micro_batch=1).within(None)[0].schedule.peak_bytes
    high = StepPlanner(graph_at, BATCH_SIZE, strategy, cost).within(None)[0].schedule.peak_bytes
    gains_s = []
    for number in range(5):
        budget_bytes = low + (high - low) * number // 4
        fitted, fastest = (
            StepPlanner(graph_at, BATCH_SIZE, strategy, cost, micro_batch=choice).within(budget_bytes)
            for choice in (FITTED, FASTEST)
        )
        assert all(part.schedule.peak_bytes <= budget_bytes for part in fastest)
        gains_s.append(simulated_step(fitted, cost).step_time_s - simulated_step(fastest, cost).step_time_s)
    assert min(gains_s) >= 0 and max(gains_s) > 0


def test_a_budget_that_no_micro_batch_keeps_is_refused() -> None:
    cost = on_a_k40()
    graph_at = cache(Captures(workload_of("alexnet", DEVICE, BATCH_SIZE)).graph_at)
    for choice in (None, FITTED, FASTEST):
        with pytest.raises(InfeasibleSchedule) as refusal:
            StepPlanner(graph_at, BATCH_SIZE, Modnn(), cost, micro_batch=choice).within(1)
        assert refusal.value.needed_bytes >= refusal.value.lower_bound_bytes


@pytest.mark.parametrize("number", range(3))
def test_the_planned_time_equals_the_simulated_time(number: int) -> None:
    cost = on_a_k40(full_duplex=False)
    graph = cost.annotate(reference("squeezenet").captured.graph)
    budget_bytes = budgets(graph, cost, 4)[number]
    simulation = _Simulation(prefer(graph, cost, Preference.MEMORY), cost, budget_bytes)
    for _ in simulation.run():
        pass
    schedule = Modnn().schedule(graph, cost, budget_bytes)
    assert simulation.end_s == pytest.approx(simulated_step((RepeatedSchedule(schedule),), cost).step_time_s)


def results_of(case: Reference, step: Callable[[Any, Any], Tensor]) -> Results:
    return run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)


@pytest.mark.parametrize("micro_batch", [2, 1])
def test_weights_may_live_on_the_host(micro_batch: int) -> None:
    """The batch's gradients are its results; those of a micro-batch are sums that come and go like the weights."""
    case = reference("squeezenet")
    captures = Captures(case.work)
    resident, visiting = (
        build_step(captures, COST, StepRequest(Modnn(offload_weights), micro_batch=micro_batch))
        for offload_weights in (False, True)
    )
    expected = results_of(case, resident)
    least_bytes = min(lower_bound_bytes(part.schedule.graph, COST) for part in visiting.plan)
    tight = build_step(captures, COST, StepRequest(Modnn(offload_weights=True), least_bytes, micro_batch=micro_batch))
    for step in (visiting, tight):
        assert expected.difference(results_of(case, step)) == ""
        assert step.plan[0].schedule.graph.external_bytes < resident.plan[0].schedule.graph.external_bytes
    assert tight.predicted_peak_bytes <= least_bytes < resident.predicted_peak_bytes
    for step in (resident, visiting, tight):
        step.close()


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [2, 1])
def test_each_micro_batch_loads_its_own_inputs_and_labels(micro_batch: int) -> None:
    case = reference("squeezenet")
    captures = Captures(case.work)
    resident, loading = (
        build_step(captures, COST, StepRequest(Modnn(load_inputs=load), micro_batch=micro_batch))
        for load in (False, True)
    )
    expected = results_of(case, resident)
    least_bytes = max(lower_bound_bytes(part.schedule.graph, COST) for part in loading.plan)
    tight = build_step(captures, COST, StepRequest(Modnn(load_inputs=True), least_bytes, micro_batch=micro_batch))
    whole_bytes = sum(tensor.nbytes for tensor in (*case.work.inputs, *case.work.targets))
    for step in (loading, tight):
        assert expected.difference(results_of(case, step)) == ""
        for run in step.plan:
            graph = run.schedule.graph
            arguments = {block.index for block in graph.blocks if block.role in ARGUMENT_ROLES}
            copied = {item.block for item in run.schedule.instructions if isinstance(item, Prefetch)}
            assert arguments and arguments <= copied
            assert graph.size_bytes(arguments) * case.work.batch_size == whole_bytes * micro_batch
    assert loading.predicted_peak_bytes <= resident.predicted_peak_bytes
    assert tight.predicted_peak_bytes <= least_bytes
    for step in (resident, loading, tight):
        step.close()


def test_with_room_inputs_are_loaded_once_before_the_first_task() -> None:
    graph = COST.annotate(reference("squeezenet").captured.graph)
    schedules = [Modnn(load_inputs=load).schedule(graph, COST, None) for load in (False, True)]
    copies = [item for item in schedules[1].instructions if isinstance(item, Offload | Prefetch)]
    loaded = [item.block for item in copies if isinstance(item, Prefetch)]
    assert len(copies) == len(set(loaded)) == len([b for b in graph.blocks if b.role in ARGUMENT_ROLES])
    assert schedules[1].instructions[: len(copies)] == tuple(copies)
    validate(schedules[1])
    assert time_s(schedules[1], on_a_k40()) > time_s(schedules[0], on_a_k40())
