"""EPMC and serial CSR: encoded activations, their sizes, times and streams; Gist's one-bit masks."""

import pytest
import torch
from torch import nn

from experiments.epmc.metrics import step_metrics
from membench.backends.cpu import Chaos
from membench.capture.capture import capture
from membench.core.graph.codec import EncodingOverflow
from membench.core.graph.schedule import COMPUTE_STREAM, Compute, Decode, Encode, Free, RepeatedSchedule, Schedule
from membench.core.graph.task_graph import Kind, Phase, TaskGraph
from membench.core.step.workload import Workload
from membench.steps.densities import likely_densities
from membench.steps.plan import plan
from membench.strategies.base import Strategy
from membench.strategies.compression import encodable_activations
from membench.strategies.eager import Eager
from membench.strategies.epmc import CODEC_STREAM, Epmc, SerialCsr
from membench.strategies.gist import Gist
from membench.sweep.cells.metrics import plan_metrics
from tests.helpers.networks.contract import COST, reference, reference_of
from tests.helpers.steps.checks import check_exact, step_of


@pytest.fixture(scope="module")
def pairs() -> Workload:
    """conv relu conv relu pool conv relu conv, then a norm after a ReLU, whose input is not to be rounded."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(8),
        nn.Conv2d(8, 4, 3, padding=1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    images, targets = torch.randn(4, 3, 16, 16), torch.randint(10, (4,))
    return Workload("pairs", module, nn.functional.cross_entropy, (images,), (targets,))


@pytest.fixture(scope="module")
def graph(pairs: Workload) -> TaskGraph:
    return COST.annotate(capture(pairs).graph)


def encodes(schedule: Schedule) -> list[Encode]:
    return [item for item in schedule.instructions if isinstance(item, Encode)]


def metrics(graph: TaskGraph, strategy: Strategy) -> dict[str, float]:
    parts = (RepeatedSchedule(plan(graph, strategy, COST, None)),)
    return plan_metrics(parts) | step_metrics(parts, (), None)


def layer_of(graph: TaskGraph, block: int) -> str:
    """Return the layer that wrote a block last in the forward pass."""
    writers = [task for task in graph.tasks if block in task.writes and task.phase is Phase.FORWARD]
    return graph.layers[writers[-1].layer]


def test_outputs_of_relu_and_of_pooling_after_it_are_encoded(graph: TaskGraph) -> None:
    layers = {layer_of(graph, block) for block in encodable_activations(graph)}
    assert layers == {"1", "3", "4"}  # not 6: the norm's gradient reads it; not the image


def test_an_activation_is_encoded_during_the_relu_of_the_convolution_that_read_it(graph: TaskGraph) -> None:
    schedule = plan(graph, Epmc(), COST, None)
    [first, *_] = encodes(schedule)
    assert (first.stream, first.codec.streams) == (CODEC_STREAM, 7)
    tasks = [schedule.graph.tasks[i.task] for i in schedule.instructions if isinstance(i, Compute)]
    at = schedule.instructions.index(first)
    before = [i for i in schedule.instructions[:at] if isinstance(i, Compute)]
    [reader, relu] = [tasks[len(before) - 1], tasks[len(before)]]
    assert reader.kind is Kind.CONVOLUTION and first.block in reader.reads
    assert relu.kind is Kind.RELU
    freed = schedule.instructions.index(Free(first.block))
    assert Compute(relu.index) in schedule.instructions[at:freed]


def test_an_activation_is_decoded_during_the_backward_before_its_convolution(graph: TaskGraph) -> None:
    schedule = plan(graph, Epmc(), COST, None)
    program = schedule.instructions
    [first, *_] = encodes(schedule)
    at = program.index(Decode(first.block, first.encoded, first.codec, CODEC_STREAM))
    beside, user = [schedule.graph.tasks[i.task] for i in program[at:] if isinstance(i, Compute)][:2]
    assert beside.kind is Kind.RELU and first.block not in beside.reads
    assert user.kind is Kind.CONVOLUTION and first.block in user.reads


def test_only_the_relu_of_a_convolution_hides_conversions(pairs: Workload, graph: TaskGraph) -> None:
    """What pooling reads is encoded before the next layer runs; so is what a convolution without a ReLU reads."""
    schedule = plan(graph, Epmc(), COST, None)
    streams = {layer_of(schedule.graph, item.block): item.stream for item in encodes(schedule)}
    assert streams == {"1": CODEC_STREAM, "3": COMPUTE_STREAM, "4": CODEC_STREAM}
    decodes = {
        layer_of(schedule.graph, item.block): item.stream for item in schedule.instructions if isinstance(item, Decode)
    }
    assert decodes == streams


def test_serial_csr_works_between_the_layers(graph: TaskGraph) -> None:
    schedule = plan(graph, SerialCsr(density=0.2), COST, None)
    for item in schedule.instructions:
        if isinstance(item, Encode | Decode):
            assert (item.stream, item.codec.streams, item.codec.rounding) == (COMPUTE_STREAM, 1, 0)
    assert schedule.rounding == 0
    at = schedule.instructions.index(encodes(schedule)[0])
    assert isinstance(schedule.instructions[at + 1], Free)


@pytest.mark.parametrize(("density", "ratio"), [(0.9, 1.48), (0.56, 2.37), (0.1, 12.99)])
def test_the_compression_ratio_of_a_large_activation_follows_the_paper(density: float, ratio: float) -> None:
    """Four bytes against 3 d + 2/256 and four bytes for a block of rows (algorithms.md, 5.4)."""
    codec = Epmc(density=density)._codec
    elements = 2**22
    assert 4 * elements / codec.size_bytes(elements, round(density * elements)) == pytest.approx(ratio, rel=0.01)


def test_an_activation_that_would_grow_is_not_encoded(graph: TaskGraph) -> None:
    eager, full = metrics(graph, Eager()), metrics(graph, SerialCsr(density=0.6))
    assert eager["stored_map_bytes"] == full["stored_map_bytes"]
    assert full["encoded_bytes"] == 0


def test_metrics_count_the_stored_bytes(graph: TaskGraph) -> None:
    eager, epmc = metrics(graph, Eager()), metrics(graph, Epmc(density=0.5))
    saved = epmc["dense_bytes_of_encoded_maps"] - epmc["encoded_bytes"]
    assert epmc["stored_map_bytes"] == eager["stored_map_bytes"] - saved > 0
    assert epmc["planned_density"] == pytest.approx(0.5, abs=0.01)
    assert (eager["rounding"], epmc["rounding"]) == (0.0, 2.0**-11)


def test_the_indices_of_pooling_are_stored_in_every_system(graph: TaskGraph) -> None:
    """8 channels of 8 x 8 pixels of four images, 8 bytes each, which no encoding makes smaller."""
    found = metrics(graph, Epmc(density=0.0))
    assert found["stored_map_bytes"] - found["encoded_bytes"] >= 8 * 4 * 8 * 8 * 8


@pytest.mark.parametrize("network", ["alexnet", pytest.param("googlenet", marks=pytest.mark.exhaustive), "resnet18"])
def test_measured_densities_are_room_enough_and_lossless_results_are_exact(network: str) -> None:
    case = reference(network)
    torch.manual_seed(1)  # as the step that follows: dropout makes zeros, too
    densities = likely_densities(case.work)
    assert densities and all(0 <= density <= 1 for density in densities.values())
    strategies: list[Strategy] = [Epmc(values="fp32", density=densities), SerialCsr(density=densities)]
    for strategy in strategies:
        schedule = plan(case.captured.graph, strategy, COST, None)
        if isinstance(strategy, Epmc):
            assert encodes(schedule)
        with step_of(case, schedule, Chaos(seed=5, longest_delay_s=0.0005)) as step:
            check_exact(case, step)


def test_measuring_leaves_the_model_as_it_was(pairs: Workload) -> None:
    before = {name: buffer.clone() for name, buffer in pairs.module.named_buffers()}
    assert likely_densities(pairs) == likely_densities(pairs)
    assert all(torch.equal(before[name], buffer) for name, buffer in pairs.module.named_buffers())
    assert all(weight.grad is None for weight in pairs.module.parameters())


def test_activations_denser_than_planned_are_an_error_with_a_remedy(pairs: Workload) -> None:
    case = reference_of(pairs)
    schedule = plan(case.captured.graph, Epmc(density=0.1), COST, None)
    with step_of(case, schedule, None) as step, pytest.raises(EncodingOverflow, match="plan with a higher density"):
        step(pairs.inputs, pairs.targets)


def test_gist_keeps_one_bit_of_what_only_the_gradient_of_a_relu_reads(graph: TaskGraph) -> None:
    schedule = plan(graph, Gist(), COST, None)
    [encode] = encodes(schedule)
    assert layer_of(schedule.graph, encode.block) == "3"  # the ReLU before the pooling
    blocks = schedule.graph.blocks
    assert blocks[encode.encoded].size_bytes * 32 == blocks[encode.block].size_bytes
