"""mmCNN: Algorithm 1 by hand, and real networks under real limits."""

from dataclasses import replace
from functools import cache

import pytest
import torch
import torchvision.models as zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import membench
from membench.backends.cpu import Chaos, CpuBackend
from membench.capture.capture import CapturedStep, capture
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Offload, Prefetch, Schedule
from membench.core.step.workload import Workload
from membench.core.units import MIB
from membench.execution.measurement import cpu_peak_bytes
from membench.models.alexnet import alexnet
from membench.models.vgg import vgg
from membench.planning.memory.liveness import copied_bytes
from membench.steps.plan import plan
from membench.steps.real.compiled_step import CompiledStep
from membench.strategies.mmcnn.strategy import Decision, LayerSizes, Mmcnn, algorithm_1, layers_of
from membench.strategies.vdnn_inference import VdnnInference
from tests.helpers.networks.contract import COST

DATA, RELU = LayerSizes(10), LayerSizes(40)


def convolution(feature_map_bytes: int, weight_bytes: int) -> LayerSizes:
    return LayerSizes(feature_map_bytes, weight_bytes, ends_segment=True)


def test_weights_are_prefetched_while_the_first_layer_of_a_segment_runs() -> None:
    decisions = algorithm_1([DATA, convolution(50, 30), RELU, convolution(60, 100)], 120, pn_max=5)
    assert decisions == [
        Decision(conv_number=1, self_number=1, row_parts=1, memory_bytes=10 + 30),
        Decision(0, 1, 1, 50),
        Decision(2, 1, 1, 40 + 50),  # 100 bytes into the 60 that the segment leaves
        Decision(0, 2, 1, 60),
    ]


def test_weights_in_too_many_parts_come_with_their_own_layer() -> None:
    decisions = algorithm_1([DATA, RELU, convolution(10, 100)], 50, pn_max=5)
    assert [d.conv_number for d in decisions] == [0, 0, 0]  # 100 bytes into 10 would be ten parts
    assert decisions[-1] == Decision(0, 3, 1, 10 + 100 / 3)


def test_activations_larger_than_the_limit_are_partitioned() -> None:
    [data, end] = algorithm_1([LayerSizes(120), convolution(240, 4)], 50, pn_max=5)
    assert (data.row_parts, data.self_number, end.self_number) == (3, 3, 5)
    assert data.memory_bytes == 40 + 4 / 2  # 48 of 50 bytes are taken at the end


def test_layers_behind_the_last_convolution_bring_nothing() -> None:
    decisions = algorithm_1([DATA, convolution(20, 10), RELU, RELU], 100, pn_max=5)
    assert [d.conv_number for d in decisions] == [1, 0, 1, 0]
    assert [d.memory_bytes for d in decisions[2:]] == [40, 40]


LAYERS = st.builds(LayerSizes, st.integers(1, 10**6), st.integers(1, 10**7), st.booleans()).map(
    lambda layer: layer if layer.ends_segment else replace(layer, weight_bytes=0)
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(LAYERS, min_size=1, max_size=12), st.integers(10**4, 10**7), st.integers(1, 8))
def test_no_layer_counts_more_than_the_limit(layers: list[LayerSizes], limit_bytes: int, pn_max: int) -> None:
    decisions = algorithm_1(layers, limit_bytes, pn_max)
    assert len(decisions) == len(layers)
    assert all(0 <= d.conv_number <= pn_max and 1 <= d.row_parts <= d.self_number for d in decisions)
    # activations that fill the limit leave no byte for weights; the rule of the paper does not cover that
    assert all(d.memory_bytes <= limit_bytes + 1 for d in decisions)


NETWORKS = {
    "alexnet": (alexnet, 227), "vgg19": (lambda: vgg(19), 224), "resnet18": (zoo.resnet18, 224),
    "resnet50": (zoo.resnet50, 224), "squeezenet1_1": (zoo.squeezenet1_1, 224), "mobilenet_v2": (zoo.mobilenet_v2, 224),
    "densenet121": (zoo.densenet121, 224),
    "googlenet": (lambda: zoo.googlenet(init_weights=False), 224), "shufflenet_v2_x1_0": (zoo.shufflenet_v2_x1_0, 224),
}  # fmt: skip


@cache
def inference(name: str) -> tuple[Workload, CapturedStep, Tensor]:
    torch.manual_seed(0)
    build, size = NETWORKS[name]
    module, images = build().eval(), torch.randn(1, 3, size, size)
    with torch.no_grad():
        work = Workload(name, module, None, (images,))
        return work, capture(work), module(images)


def run(name: str, schedule: Schedule, chaos: Chaos | None = None) -> tuple[Tensor, int]:
    """Return the output, and the allocator's measured peak with what stays on the device all the time."""
    work, captured, _ = inference(name)
    backend = CpuBackend(schedule.graph, chaos=chaos)
    step = CompiledStep(work, captured, schedule, backend)
    peak_bytes = schedule.graph.external_bytes + cpu_peak_bytes(lambda: step(work.inputs))
    output = step(work.inputs)
    backend.close()
    return output, peak_bytes


def difference(name: str, output: Tensor) -> float:
    """Return the largest difference from the unlimited run's output, relative to its largest value."""
    expected = inference(name)[2]
    return float((output - expected).abs().max() / expected.abs().max())


FAST = ("resnet18", "squeezenet1_1")
EACH_NETWORK = [pytest.param(n, marks=() if n in FAST else pytest.mark.exhaustive) for n in NETWORKS]


@pytest.mark.parametrize("limit_mib", [200, 100, 50, 10, 5])
@pytest.mark.parametrize("name", EACH_NETWORK)
def test_the_measured_peak_keeps_the_limit_and_the_output_is_the_same(name: str, limit_mib: int) -> None:
    schedule = plan(inference(name)[1].graph, Mmcnn(), COST, limit_mib * MIB)
    output, peak_bytes = run(name, schedule)
    assert peak_bytes == schedule.peak_bytes <= limit_mib * MIB
    assert difference(name, output) <= 1e-5


@pytest.mark.parametrize("name", ["resnet18"])
def test_late_copies_and_poisoned_memory_do_not_change_results(name: str) -> None:
    schedule = plan(inference(name)[1].graph, Mmcnn(), COST, 6 * MIB)
    assert run(name, schedule)[0].equal(run(name, schedule, Chaos(seed=5, longest_delay_s=0.0003))[0])


def caller_bytes(name: str) -> int:
    graph = inference(name)[1].graph
    used = {block for task in graph.tasks for block in task.reads}
    return sum(b.size_bytes for b in graph.blocks if b.is_external and b.index in used)


@pytest.mark.parametrize("limit_mib", [200, 100, 50, 10, 5])
def test_each_weight_is_prefetched_once_where_no_activation_is_offloaded(limit_mib: int) -> None:
    schedule = plan(inference("alexnet")[1].graph, Mmcnn(), COST, limit_mib * MIB)
    assert copied_bytes(schedule, Offload) == 0
    assert copied_bytes(schedule, Prefetch) == caller_bytes("alexnet")


def test_an_inference_takes_longer_the_smaller_the_limit() -> None:
    """As in Figure 9 of the paper, which states no numbers; simulated on its device."""
    with torch.device("meta"):
        network, batch = alexnet().eval(), (torch.empty(1, 3, 227, 227), ())
    times_s = [
        membench.compile(
            network, None, batch, strategy="mmcnn", backend="simulated", device="titan_x_maxwell", budget=limit
        ).measure().step_time_s
        for limit in ("200 MB", "100 MB", "50 MB", "10 MB", "5 MB")
    ]  # fmt: skip
    assert times_s == sorted(set(times_s))
    assert times_s[-1] < 1.1 * times_s[0]  # the weights' copies hide most of what parts cost


def test_an_activation_is_offloaded_and_prefetched_once() -> None:
    schedule = plan(inference("resnet18")[1].graph, Mmcnn(), COST, 5 * MIB)
    out = [i.block for i in schedule.instructions if isinstance(i, Offload)]
    assert out and len(out) == len(set(out))
    back = copied_bytes(schedule, Prefetch) - caller_bytes("resnet18")
    assert copied_bytes(schedule, Offload) <= back <= 2 * copied_bytes(schedule, Offload)


def test_a_network_that_fits_runs_as_usual() -> None:
    graph = COST.annotate(inference("squeezenet1_1")[1].graph)
    usual = plan(graph, Mmcnn(), COST, None)
    assert plan(graph, Mmcnn(), COST, usual.peak_bytes) == usual
    assert not any(isinstance(item, Prefetch) for item in usual.instructions)
    smaller = plan(graph, Mmcnn(), COST, usual.peak_bytes - 1)
    assert smaller.graph.external_bytes == 0


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3),
        nn.Flatten(), nn.Linear(3136, 40)
    )  # fmt: skip


def test_a_limit_that_cannot_be_met_is_refused_with_the_smallest_that_can() -> None:
    with torch.no_grad():
        graph = capture(Workload("small", small().eval(), None, (torch.randn(1, 3, 32, 32),))).graph
    with pytest.raises(InfeasibleSchedule) as refusal:
        plan(graph, Mmcnn(), COST, 1000)
    smallest_bytes = refusal.value.needed_bytes
    assert plan(graph, Mmcnn(), COST, smallest_bytes).peak_bytes <= smallest_bytes
    with pytest.raises(InfeasibleSchedule):
        plan(graph, Mmcnn(), COST, smallest_bytes - 1)


def test_layers_are_counted_as_the_paper_does() -> None:
    """AlexNet has 21 layers in Table 4: data, five convolutions, seven ReLUs, two norms, three pools, three linear."""
    layers = layers_of(inference("alexnet")[1].graph)
    assert len(layers) == 21
    assert layers[0] == LayerSizes(3 * 227**2 * 4)
    assert layers[1] == LayerSizes(3 * 227**2 * 4 + 96 * 55**2 * 4, (96 * 363 + 96) * 4, ends_segment=True)
    assert layers[2] == LayerSizes(96 * 55**2 * 4)  # in place: one feature map
    assert layers[3] == LayerSizes(2 * 96 * 55**2 * 4)  # a norm's inner feature maps are not counted
    assert layers[16].weight_bytes == (9216 * 4096 + 4096) * 4


def test_vdnn_in_inference_holds_the_weights_of_the_largest_layer() -> None:
    schedule = plan(inference("alexnet")[1].graph, VdnnInference(), COST, None)
    output, peak_bytes = run("alexnet", schedule)
    assert difference("alexnet", output) == 0
    assert peak_bytes == schedule.peak_bytes
    assert 144 * MIB < peak_bytes < 149 * MIB  # fc6, and a library's copy of its operands


class Wide(nn.Module):
    """Too wide for a small limit at any number of rows, for it sums over all of them at once."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.fft.rfft2(images).abs().sum((2, 3))


def test_what_cannot_be_split_sets_the_smallest_limit() -> None:
    with torch.no_grad():
        captured = capture(Workload("wide", Wide(), None, (torch.randn(1, 3, 64, 64),)))
    graph = COST.annotate(captured.graph)
    with pytest.raises(InfeasibleSchedule) as refusal:
        plan(graph, Mmcnn(), COST, 20_000)
    real_bytes, half_of_complex_bytes = 64 * 4, 33 * 8
    assert refusal.value.needed_bytes == 3 * 64 * (real_bytes + half_of_complex_bytes)
