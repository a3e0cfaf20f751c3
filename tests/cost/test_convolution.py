"""cuDNN's algorithms: workspaces computed by hand, restrictions, and what must hold of any convolution."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from membench.core.errors import MembenchError
from membench.core.graph.convolution import Convolution
from membench.core.graph.task_graph import GradientOf, Kind, Phase, Task
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency
from membench.cost.convolution import ConvolutionAlgorithm, algorithm_work
from membench.cost.kernels import computes_both_gradients
from membench.cost.roofline import RooflineCost
from membench.planning.rewrites.rewrite import join_convolution_backward
from tests.helpers.planning.chains import graph_of

PASSES = (None, GradientOf.WEIGHT, GradientOf.DATA)
FRACTIONS = dict.fromkeys(ConvolutionAlgorithm, 0.25)
DEVICE = DeviceProfile("round", 1, 1e12, 1e11, 1e10, 1e10, 0.0, True)
COST = RooflineCost(DEVICE, Efficiency(0.5, 0.5, convolution=FRACTIONS))


def convolution(
    images: int,
    input_channels: int,
    output_channels: int,
    side: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Convolution:
    """Return a square single-precision convolution."""
    output = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    pairs = [(n, n) for n in (side, output, kernel, stride, padding, dilation)]
    return Convolution(images, input_channels, output_channels, *pairs, groups, itemsize=4)


ALEXNET_CONV2 = convolution(128, 96, 256, 27, 5, padding=2, groups=2)
VGG_CONV1_2 = convolution(64, 64, 64, 224, 3, padding=1)
ONE_BY_ONE = convolution(32, 256, 64, 56, 1)


def workspaces(c: Convolution, gradient_of: GradientOf | None = None) -> dict[str, int]:
    found = {name: algorithm_work(name, c, gradient_of) for name in ConvolutionAlgorithm}
    return {name: needed.workspace_bytes for name, needed in found.items() if needed is not None}


def task(c: Convolution, gradient_of: GradientOf | None = None) -> Task:
    phase = Phase.BACKWARD if gradient_of else Phase.FORWARD
    maps = c.images * (c.input_channels * c.input_size[0] ** 2 + c.output_channels * c.output_size[0] ** 2)
    return Task(
        0, "task", Kind.CONVOLUTION, phase, 0, (), (), (),
        moved_bytes=4 * maps, gradient_of=gradient_of, convolution=c,
    )  # fmt: skip


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    kernel, dilation = draw(st.sampled_from([1, 2, 3, 5, 7, 11])), draw(st.sampled_from([1, 1, 1, 2]))
    return convolution(
        draw(st.integers(1, 64)),
        groups * draw(st.integers(1, 64)),
        groups * draw(st.integers(1, 64)),
        draw(st.integers(dilation * (kernel - 1) + 1, 300)),
        kernel,
        stride=draw(st.sampled_from([1, 1, 1, 2, 4])),
        padding=draw(st.integers(0, 5)),
        dilation=dilation,
        groups=groups,
    )


# ---- by hand ------------------------------------------------------------------------------------------


def test_workspaces_of_the_second_convolution_of_alexnet() -> None:
    """One group at a time: 48 to 128 channels. 27 + 2 x 2 pixels take a transform of 32 x 32, and so one tile."""
    spectrum = 32 * 17 * 8
    spectra = 128 * 48 + 48 * 128 + 128 * 128
    assert workspaces(ALEXNET_CONV2) == {
        "implicit_gemm": 0,
        "implicit_precomp_gemm": 4 * 48 * 25,
        "gemm": 4 * (48 * 25) * (128 * 27 * 27),
        "fft": spectrum * spectra,
        "fft_tiling": spectrum * spectra,
    }
    assert spectrum * spectra == 119 * 2**20


def test_workspaces_of_the_second_convolution_of_vgg() -> None:
    """226 pixels take a transform of 256 x 256, or 8 x 8 tiles of 30 x 30 outputs; 56 x 56 tiles for Winograd."""
    assert workspaces(VGG_CONV1_2) == {
        "implicit_gemm": 0,
        "implicit_precomp_gemm": 2_304,
        "gemm": 7_398_752_256,
        "fft": (256 * 129 * 8) * (64 * 64 + 64 * 64 + 64 * 64),
        "fft_tiling": (32 * 17 * 8) * (64 * (64 * 64) + 64 * 64 + 64 * (64 * 64)),
        "winograd": (36 * 4) * (3136 * (64 * 64) + 64 * 64 + 3136 * (64 * 64)),
    }


def test_a_convolution_of_single_pixels_has_no_transform() -> None:
    expected = {"implicit_gemm": 0, "implicit_precomp_gemm": 1_024, "gemm": 102_760_448}
    assert workspaces(ONE_BY_ONE) == expected


def test_the_gradients_need_what_the_forward_pass_needs_but_the_matrix() -> None:
    forward, weight, data = (workspaces(VGG_CONV1_2, gradient_of) for gradient_of in PASSES)
    assert forward.keys() - data.keys() == {"gemm"}
    assert forward.keys() - weight.keys() == {"gemm", "fft_tiling"}
    assert data == {name: forward[name] for name in data}
    assert weight == {name: forward[name] for name in weight}


def test_the_workspace_of_fft_is_near_the_one_logged_by_cudnn() -> None:
    """Theano, pull request 6348; see the module."""
    for side, kernel, logged_bytes in ((128, (64, 64), 9_445_376), (256, (32, 64), 37_502_976)):
        c = replace(convolution(12, 4, 5, side, 32), kernel_size=kernel)
        assert workspaces(c)["fft"] == pytest.approx(logged_bytes, rel=0.1)


def test_operations_of_the_second_convolution_of_vgg() -> None:
    expected = {
        "implicit_gemm": 2 * 64 * (64 * 64 * 9) * 224**2,
        "fft": 8 * 256 * 129 * 64 * (64 * 64) + 2.5 * 256**2 * 16 * (3 * 64 * 64),
        "fft_tiling": 8 * 32 * 17 * 64 * (64 * 64) * 64 + 2.5 * 32**2 * 10 * (129 * 64 * 64),
        "winograd": 2 * 36 * 3136 * 64 * (64 * 64) + 64 * 64 * (3136 * (156 + 90) + 72),
    }
    for name, operations in expected.items():
        needed = algorithm_work(ConvolutionAlgorithm(name), VGG_CONV1_2, None)
        assert needed is not None
        assert needed.operations == operations


# ---- restrictions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("c", "expected"),
    [
        (convolution(2, 3, 4, 64, 3, padding=1), {"fft", "fft_tiling", "winograd"}),
        (convolution(2, 3, 4, 64, 3, padding=1, groups=1, stride=2), set()),
        (convolution(2, 3, 4, 64, 3, padding=1, dilation=2), set()),
        (convolution(2, 3, 4, 64, 5, padding=2), {"fft", "fft_tiling"}),
        (convolution(2, 3, 4, 64, 3, padding=3), {"winograd"}),  # padding as wide as the kernel
        (convolution(2, 3, 4, 256, 3), {"fft", "fft_tiling", "winograd"}),
        (convolution(2, 3, 4, 256, 3, padding=1), {"fft_tiling", "winograd"}),  # 258 pixels
        (convolution(2, 3, 4, 128, 33), {"fft"}),  # larger than a tile
        (convolution(2, 4, 4, 64, 3, groups=4), {"fft", "fft_tiling", "winograd"}),
    ],
)
def test_when_transforms_apply(c: Convolution, expected: set[str]) -> None:
    products = {"implicit_gemm", "implicit_precomp_gemm", "gemm"}
    assert workspaces(c).keys() == products | expected


def test_groups_compute_one_after_another() -> None:
    alone = algorithm_work(ConvolutionAlgorithm.FFT, convolution(8, 16, 32, 28, 5), None)
    four = algorithm_work(ConvolutionAlgorithm.FFT, convolution(8, 64, 128, 28, 5, groups=4), None)
    assert alone is not None
    assert four is not None
    assert four.workspace_bytes == alone.workspace_bytes
    assert four.operations == 4 * alone.operations
    assert four.staged_bytes == 4 * alone.staged_bytes == 8 * alone.workspace_bytes


# ---- of any convolution -------------------------------------------------------------------------------


@given(convolutions(), st.sampled_from(PASSES))
def test_implicit_gemm_always_applies_and_needs_nothing(c: Convolution, gradient_of: GradientOf) -> None:
    found = workspaces(c, gradient_of)
    assert found["implicit_gemm"] == 0
    assert min(found.values()) >= 0


@given(convolutions(), st.sampled_from(PASSES), st.integers(1, 64))
def test_more_images_need_more(c: Convolution, gradient_of: GradientOf, more: int) -> None:
    few, many = workspaces(c, gradient_of), workspaces(replace(c, images=c.images + more), gradient_of)
    assert few.keys() == many.keys()
    for name in few.keys() - {"implicit_gemm", "implicit_precomp_gemm"}:
        assert few[name] < many[name]


@given(convolutions(), st.sampled_from(PASSES))
def test_algorithms_are_those_that_apply_the_fastest_first(c: Convolution, gradient_of: GradientOf) -> None:
    algorithms = COST.algorithms(task(c, gradient_of))
    assert {algorithm.name: algorithm.workspace_bytes for algorithm in algorithms} == workspaces(c, gradient_of)
    assert [algorithm.time_s for algorithm in algorithms] == sorted(algorithm.time_s for algorithm in algorithms)
    for algorithm in algorithms:
        assert COST.task_time_s(replace(task(c, gradient_of), algorithm=algorithm.name)) == algorithm.time_s


@given(convolutions(), st.sampled_from(PASSES), st.integers(1, 2**34))
def test_algorithms_that_fit_alone_leave_room_for_the_tensors(
    c: Convolution, gradient_of: GradientOf, memory_bytes: int
) -> None:
    efficiency = Efficiency(0.5, 0.5, convolution=FRACTIONS, algorithms_fit_alone=True)
    cost = RooflineCost(replace(DEVICE, memory_bytes=memory_bytes), efficiency)
    room_bytes = memory_bytes - task(c, gradient_of).moved_bytes
    fitting = [
        algorithm
        for algorithm in COST.algorithms(task(c, gradient_of))
        if not algorithm.workspace_bytes or algorithm.workspace_bytes <= room_bytes
    ]
    assert cost.algorithms(task(c, gradient_of)) == tuple(fitting)


# ---- the cost model -----------------------------------------------------------------------------------


def test_seconds_are_operations_or_bytes_over_the_rate_reached() -> None:
    wide, narrow = convolution(64, 256, 256, 28, 3, padding=1), convolution(64, 1, 1, 28, 1)
    seconds = {algorithm.name: algorithm.time_s for algorithm in COST.algorithms(task(wide))}
    assert seconds["implicit_gemm"] == pytest.approx(2 * 64 * (256 * 256 * 9) * 28**2 / 0.25e12)
    slow_memory = RooflineCost(replace(DEVICE, memory_bytes_per_s=1e8), Efficiency(0.5, 0.5, convolution=FRACTIONS))
    bound = {algorithm.name: algorithm.time_s for algorithm in slow_memory.algorithms(task(wide))}
    maps_bytes = 4 * 64 * 2 * 256 * 28**2
    assert bound["fft"] == pytest.approx((maps_bytes + 2 * workspaces(wide)["fft"]) / 0.5e8)
    assert slow_memory.algorithms(task(narrow))[0].name == "implicit_gemm"


def test_without_a_choice_there_is_one_algorithm() -> None:
    cost = RooflineCost(DEVICE, Efficiency(0.5, 0.5))
    [algorithm] = cost.algorithms(task(VGG_CONV1_2))
    assert (algorithm.name, algorithm.workspace_bytes) == ("", 0)
    [other] = COST.algorithms(replace(task(VGG_CONV1_2), convolution=None))
    assert other.name == ""


def test_an_algorithm_that_cannot_run_is_refused() -> None:
    with pytest.raises(MembenchError, match="no algorithm 'fft' for task"):
        COST.task_time_s(replace(task(ONE_BY_ONE), algorithm="fft"))


def test_unknown_algorithms_are_named() -> None:
    with pytest.raises(MembenchError, match="no convolution algorithm 'direct'; choose one of implicit_gemm, "):
        RooflineCost(DEVICE, Efficiency(0.5, 0.5, convolution={"implicit_gemm": 0.5, "direct": 0.5}))


def test_a_choice_needs_the_algorithm_that_always_applies() -> None:
    with pytest.raises(MembenchError, match="needs implicit_gemm"):
        RooflineCost(DEVICE, Efficiency(0.5, 0.5, convolution={"fft": 0.5}))


def test_a_call_of_both_gradients_has_the_frameworks_algorithm_alone() -> None:
    with torch.device("meta"):
        graph = graph_of(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(1152, 3)), 3, 16)
    choices = [len(COST.algorithms(each)) for each in graph.tasks if each.convolution]
    joined = join_convolution_backward(graph, COST)
    assert len(joined.tasks) < len(graph.tasks)
    both = [each for each in joined.tasks if computes_both_gradients(each)]
    assert min(choices) > 1
    assert [[a.name for a in COST.algorithms(each)] for each in both] == [[""]] * len(both)
