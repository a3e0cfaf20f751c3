"""Layrub: the race of Section 4.3 for real, migration, and what stays constant with depth."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from membench.backends.cpu import Chaos, CpuBackend
from membench.backends.simulated import SimulatedBackend
from membench.capture.capture import capture
from membench.conformance.results import Reference, reference_of, run_step
from membench.core import configuration
from membench.core.errors import InvalidSchedule
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    Compute,
    Offload,
    Prefetch,
    RepeatedSchedule,
    Reserve,
    Reuse,
    Schedule,
    Wait,
)
from membench.core.graph.task_graph import GradientOf, Phase, Role, TaskGraph
from membench.core.hardware.efficiency import Efficiency
from membench.core.step.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.execution.executor import execute
from membench.frameworks.caffe import CAFFE
from membench.frameworks.lowering import lower_layers
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import copied_bytes, peak_bytes
from membench.steps.compile import CompiledStep
from membench.steps.plan import plan
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import Strategy
from membench.strategies.layrub.activations import Activations
from membench.strategies.layrub.strategy import LayrubHybrid, LayrubInter, LayrubIntra
from membench.strategies.network_wide import NetworkWide
from membench.strategies.streams import BIAS_GRADIENT_STREAM, WEIGHT_GRADIENT_STREAM
from membench.sweep.cells.metrics import compute_spans
from tests.helpers.networks.contract import COST
from tests.helpers.planning.graphs import COST as ROOFLINE
from tests.helpers.planning.graphs import captured_model


@pytest.fixture(scope="module")
def chain() -> Reference:
    """Convolutions with ReLU whose activations and gradients have one size, so that each gradient reuses."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True))]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    inputs, targets = torch.randn(4, 8, 12, 12), torch.randint(3, (4,))
    return reference_of(Workload("chain", module, nn.functional.cross_entropy, (inputs,), (targets,)))


def without_barriers(schedule: Schedule) -> Schedule:
    """Drop the data gradients' waits for weight gradients: the schedule that Layrub's Section 4.3 warns of."""

    def is_barrier(instruction: object) -> bool:
        if not isinstance(instruction, Wait) or instruction.stream != COMPUTE_STREAM:
            return False
        awaited = schedule.instructions[instruction.instruction]
        return isinstance(awaited, Compute) and awaited.stream == WEIGHT_GRADIENT_STREAM

    first_compute = next(i for i, item in enumerate(schedule.instructions) if isinstance(item, Compute))
    harmless = Wait(WEIGHT_GRADIENT_STREAM, first_compute)
    last_reuse = max(i for i, item in enumerate(schedule.instructions) if isinstance(item, Reuse))
    program = (
        harmless if is_barrier(item) and position < last_reuse else item
        for position, item in enumerate(schedule.instructions)
    )
    return replace(schedule, instructions=tuple(program))


def run_in_chaos(case: Reference, schedule: Schedule) -> str:
    backend = CpuBackend(schedule.graph, chaos=Chaos(seed=0, longest_delay_s=0.02))
    step = CompiledStep(case.work, case.captured, schedule, backend)
    results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
    backend.close()
    return case.results.difference(results)


def test_without_the_barrier_validate_names_the_hazard_and_gradients_are_wrong(chain: Reference) -> None:
    schedule = plan(chain.captured.graph, LayrubIntra(gradient_streams=True), COST, None)
    racing = without_barriers(schedule)
    with pytest.raises(
        InvalidSchedule, match=r"given back while .*convolution_backward.*weight gradient.* may still use it"
    ):
        validate(racing)
    assert "gradient of" in run_in_chaos(chain, racing)


def test_with_the_barrier_the_schedule_is_valid_and_gradients_are_exact(chain: Reference) -> None:
    schedule = plan(chain.captured.graph, LayrubIntra(gradient_streams=True), COST, None)
    assert any(isinstance(item, Reuse) for item in schedule.instructions)
    validate(schedule)
    assert run_in_chaos(chain, schedule) == ""


def test_gradient_streams_without_reuse_need_no_barrier(chain: Reference) -> None:
    schedule = plan(chain.captured.graph, NetworkWide(gradient_streams=True), COST, None)
    assert any(isinstance(item, Compute) and item.stream == WEIGHT_GRADIENT_STREAM for item in schedule.instructions)
    assert run_in_chaos(chain, schedule) == ""


@pytest.mark.parametrize("half_waves", [0.0, 1.0])
def test_barriers_cost_what_gradients_would_overlap(half_waves: float) -> None:
    """Kernels that fill the device overlap only in their launch, which is nothing here (Section 4.3, Figure 8)."""
    device = configuration.load("device", "k40m")
    cost = RooflineCost(device, Efficiency(arithmetic=0.3, memory=0.4, half_waves=half_waves))
    graph = cost.annotate(lower_layers(captured_model("cifar10_quick", 100), CAFFE))

    def time_s(strategy: Strategy) -> float:
        schedule = plan(graph, strategy, cost, None)
        return execute(schedule, SimulatedBackend(schedule.graph, cost)).step_time_s

    gained_s, with_barriers_s = (
        time_s(strategy(gradient_streams=False)) - time_s(strategy(gradient_streams=True))
        for strategy in (NetworkWide, LayrubIntra)
    )
    if half_waves:
        assert gained_s > 0.02 * time_s(NetworkWide())
        assert 0 < with_barriers_s < 0.1 * gained_s  # the biases' and the weights' gradients still overlap
    else:
        assert gained_s == pytest.approx(0, abs=1e-9) == with_barriers_s


def test_with_barriers_a_data_gradient_starts_after_the_other_gradients() -> None:
    """And without them it need not: no task of its layer does (Section 4.3, Figure 8)."""
    efficiency = Efficiency(arithmetic=0.3, memory=0.4, half_waves=1.0)
    cost = RooflineCost(configuration.load("device", "k40m"), efficiency)
    graph = cost.annotate(lower_layers(captured_model("cifar10_quick", 100), CAFFE))

    def starts_after_all(strategy: Strategy) -> bool:
        schedule = plan(graph, strategy, cost, None)
        timeline = execute(schedule, SimulatedBackend(schedule.graph, cost))
        spans = {
            (task.layer, task.gradient_of): span
            for task, span in compute_spans(schedule, timeline)
            if task.phase is Phase.BACKWARD
        }
        convolution = next(task.layer for task in graph.tasks if graph.layers[task.layer] == "conv3")
        bias, weight, data = (spans[convolution, part] for part in GradientOf)
        assert bias.stream == BIAS_GRADIENT_STREAM and weight.stream == WEIGHT_GRADIENT_STREAM
        return data.start_s >= max(bias.end_s, weight.end_s)

    assert starts_after_all(LayrubIntra(gradient_streams=True))
    assert not starts_after_all(NetworkWide(gradient_streams=True))


def test_gradient_streams_have_a_workspace_of_their_own(chain: Reference) -> None:
    one, two = (
        plan(chain.captured.graph, NetworkWide(gradient_streams=streams), COST, None) for streams in (False, True)
    )
    on_stream = [
        one.graph.tasks[item.task].workspace_bytes
        for item in two.instructions
        if isinstance(item, Compute) and item.stream == WEIGHT_GRADIENT_STREAM
    ]
    # how much of it the peak contains depends on the workspaces of this CPU's kernels
    assert 0 < two.peak_bytes - one.peak_bytes <= max(on_stream)


def test_intra_layer_reuse_gives_every_gradient_the_space_of_its_activation(chain: Reference) -> None:
    maps = frozenset({Role.ACTIVATION, Role.GRADIENT})
    one_map = 4 * 8 * 12 * 12 * 4
    whole = peak_bytes(plan(chain.captured.graph, NetworkWide(), COST, None), maps)
    reused = peak_bytes(plan(chain.captured.graph, LayrubIntra(), COST, None), maps)
    # Eager keeps 4 outputs (ReLU in place), 4 gradients of ReLUs and 3 of convolutions (none for the images).
    assert whole == pytest.approx(11 * one_map, rel=0.1)
    outputs_and_masks = 4 * one_map + 4 * one_map / 4
    assert reused == pytest.approx(outputs_and_masks, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [LayrubInter(), LayrubHybrid(), LayrubHybrid(fixed_region=True), LayrubHybrid(True, only_needed=False)],
    ids=["inter", "hybrid", "hybrid, fixed region", "Algorithm 1"],
)
def test_the_peak_of_migration_does_not_grow_with_depth(strategy: LayrubHybrid) -> None:
    peaks = []
    for blocks in ([3, 4, 6, 3], [3, 4, 36, 3]):
        with torch.device("meta"):
            module = ResNet(Bottleneck, blocks)
            batch = (torch.empty(8, 3, 224, 224),), (torch.empty(8, dtype=torch.int64),)
            graph = capture(Workload("resnet", module, nn.functional.cross_entropy, *batch)).graph
        schedule = strategy.schedule(graph, _NoWorkspace(), None)
        validate(schedule)
        peaks.append(peak_bytes(schedule, frozenset({Role.ACTIVATION, Role.GRADIENT})))
    assert peaks[1] == peaks[0]


def step_time_s(schedule: Schedule) -> float:
    return simulated_step((RepeatedSchedule(schedule, 1),), ROOFLINE).timelines[0].step_time_s


@pytest.fixture(scope="module", params=["resnet50", "googlenet", "alexnet"])
def network(request: pytest.FixtureRequest) -> TaskGraph:
    return lower_layers(captured_model(request.param, 8), CAFFE)


def test_algorithm_1_moves_all_that_has_no_reader_left(network: TaskGraph) -> None:
    schedule = plan(network, LayrubInter(only_needed=False), ROOFLINE, None)
    validate(schedule)
    moved = {x.block for x in schedule.instructions if isinstance(x, Offload)}
    last = network.forward_layers[-1].touches | network.backward_layers[0].reads
    assert moved >= Activations(network).all - last
    assert moved == {x.block for x in schedule.instructions if isinstance(x, Prefetch)}


def test_algorithm_1_brings_a_layers_inputs_back_during_the_layer_before(network: TaskGraph) -> None:
    schedule = plan(network, LayrubHybrid(only_needed=False), ROOFLINE, None)
    graph, inputs = schedule.graph, Activations(schedule.graph).inputs
    wanted = [{*layer.reads, *inputs.get(layer.layer, ())} for layer in graph.backward_layers]
    came_in: dict[int, int] = {}
    position = -1  # of the layer of the backward pass that ran last
    for item in schedule.instructions:
        if isinstance(item, Prefetch):
            came_in.setdefault(item.block, position + 1)
        elif isinstance(item, Compute) and (task := graph.tasks[item.task]).phase is Phase.BACKWARD:
            position = next(p for p, layer in enumerate(graph.backward_layers) if task in layer.tasks)
    assert came_in
    for block, during in came_in.items():
        assert next(p for p, blocks in enumerate(wanted) if block in blocks) == during + 1


def test_moving_only_what_is_needed_is_never_slower_and_needs_no_more_memory(network: TaskGraph) -> None:
    for strategy in (LayrubInter, LayrubHybrid):
        some, everything = (plan(network, strategy(only_needed=needed), ROOFLINE, None) for needed in (True, False))
        assert copied_bytes(some, Offload) <= copied_bytes(everything, Offload)
        assert some.peak_bytes <= everything.peak_bytes
        assert step_time_s(some) <= step_time_s(everything)


def test_gradients_to_be_summed_up_share_two_buffers_under_intra_layer_reuse() -> None:
    """The first stage's two are the largest; without sharing each sum would have two of its own."""
    graph = lower_layers(captured_model("resnet50", 2), CAFFE)
    schedule = plan(graph, LayrubIntra(), ROOFLINE, None)
    validate(schedule)
    parts = Activations(schedule.graph).of_parts
    buffers = [x.space_bytes for x in schedule.instructions if isinstance(x, Reserve) and x.block in parts]
    assert buffers == [2 * 256 * 56 * 56 * 4] * 2


class _NoWorkspace:
    def annotate(self, graph: object) -> object:
        return graph
