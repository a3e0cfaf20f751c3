"""cuDNN's copies of layout: what convolutions hold in addition, and what holds nothing."""

import pytest
import torch
from torch import Tensor, nn

from membench.core.configuration import load
from membench.core.graph.precision import Precision
from membench.core.step.workload import Workload
from membench.core.units import MIB
from membench.cost.layouts import conversions, weight_gradient_copies_bytes
from membench.cost.library_memory import convolution_workspace_bytes, layout_copies_bytes
from membench.steps.predict import Predictor, predict
from membench.steps.predicted.prediction import Prediction
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch

HALF = torch.float16
IN, OUT = 32, 48
IMAGES, RESULT, WEIGHT = 2 * IN * 4 * 10 * 10 * 2, 2 * OUT * 2 * 8 * 8 * 2, OUT * IN * 27 * 2
"""Bytes of a convolution's tensors in half precision."""


def images(dtype: torch.dtype = HALF, *, channels_last: bool = False) -> Tensor:
    made = torch.empty(2, IN, 4, 10, 10, dtype=dtype, device="meta")
    return made.contiguous(memory_format=torch.channels_last_3d) if channels_last else made


def convolution(dtype: torch.dtype = HALF, *, groups: int = 1, transposed: bool = False) -> nn.Module:
    kind = nn.ConvTranspose3d if transposed else nn.Conv3d
    return kind(IN, OUT, 3, groups=groups, bias=False, dtype=dtype, device="meta")


def prediction(
    module: nn.Module, given: Tensor, device: str = "rtx4090", *, trains: bool = False, precision: str | None = None
) -> Prediction:
    loss = (lambda made: made.float().sum()) if trains else None
    return predict(module.train(trains), loss, ((given,), ()), device=device, precision=precision)


def workspace_bytes(*args: object, **options: object) -> int:
    return prediction(*args, **options).parts_bytes.get("workspace", 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["v100", "t4", "a100_40gb", "rtx4090", "h100"])
def test_a_forward_pass_in_half_precision_holds_all_of_its_tensors_again(device: str) -> None:
    assert workspace_bytes(convolution(), images(), device) == IMAGES + RESULT + WEIGHT


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("rtx4090", torch.float32), ("p100", HALF), ("v100", torch.bfloat16), ("mi300x", HALF)],
    ids=["single precision", "no tensor cores", "none for bfloat16", "no cuDNN"],
)
def test_a_card_without_tensor_cores_for_the_format_holds_nothing(device: str, dtype: torch.dtype) -> None:
    assert workspace_bytes(convolution(dtype), images(dtype), device) == 0


def test_tensors_with_their_channels_together_are_not_copied() -> None:
    module = convolution().to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    assert workspace_bytes(module, images(channels_last=True)) == 0
    assert workspace_bytes(convolution(), images(channels_last=True)) == WEIGHT


def test_autocast_has_the_copies_of_half_precision() -> None:
    module = convolution(torch.float32)
    assert workspace_bytes(module, images(torch.float32), precision="amp_fp16") == IMAGES + RESULT + WEIGHT
    assert workspace_bytes(module, images(torch.float32), precision="fp32") == 0
    assert workspace_bytes(module, images(torch.float32), precision="tf32") == 0


@pytest.mark.parametrize(
    ("groups", "expected"), [(1, IMAGES + RESULT + WEIGHT), (2, IMAGES + RESULT + WEIGHT // 2), (IN, 0)]
)
def test_depthwise_convolutions_run_kernels_that_copy_nothing(groups: int, expected: int) -> None:
    module = nn.Conv3d(IN, 2 * IN if groups == IN else OUT, 3, groups=groups, bias=False, dtype=HALF, device="meta")
    assert workspace_bytes(module, images()) == expected


def test_a_transposed_convolution_holds_all_of_its_tensors_again() -> None:
    result = 2 * OUT * 6 * 12 * 12 * 2
    assert workspace_bytes(convolution(transposed=True), images()) == IMAGES + result + WEIGHT


def test_a_convolution_in_one_or_two_dimensions_holds_nothing() -> None:
    for kind, shape in ((nn.Conv1d, (2, IN, 99)), (nn.Conv2d, (2, IN, 9, 9))):
        given = torch.empty(shape, dtype=HALF, device="meta")
        assert workspace_bytes(kind(IN, OUT, 3, dtype=HALF, device="meta"), given) == 0


def test_gradients_are_two_calls_one_after_another() -> None:
    """The gradient of the weight needs the images and that of the result; the gradient of the images the weight."""
    module = nn.Sequential(nn.Conv3d(IN, IN, 1, dtype=HALF, device="meta"), convolution())
    workload = Workload("net", module, lambda made: made.float().sum(), (images(),))
    predictor = Predictor(workload, StepRequest(PyTorch()))
    device = load("device", "rtx4090")
    joined = predictor.planned(device)[0][0].schedule.graph
    found = [task for task in joined.tasks if conversions(task.call)]
    of_pointwise = 2 * IMAGES  # whose filters lie as they are to
    assert [conversions(task.call) for task in found] == [
        (of_pointwise,),
        (IMAGES + RESULT + WEIGHT,),
        2 * (IMAGES + RESULT + WEIGHT,),
        (of_pointwise,),  # of the weight alone
    ]
    assert [task.workspace_bytes for task in found] == [max(conversions(task.call)) for task in found]
    assert all(layout_copies_bytes(task, device) == task.workspace_bytes for task in found)
    assert all(convolution_workspace_bytes(task, device) == 0 for task in found)
    assert all(task.precision is Precision.FP16 for task in found)


IMAGES_2D, RESULT_2D, WEIGHT_2D = 2 * IN * 9 * 9 * 4, 2 * OUT * 7 * 7 * 4, OUT * IN * 9 * 4
"""Bytes of a convolution's tensors in two dimensions, in single precision."""


def copies_2d(module: nn.Module, device: str, **options: object) -> list[int]:
    """Return what is copied for the weight's gradient in each task of a convolution, forward and backward."""
    given = torch.empty(2, IN, 9, 9, device="meta")
    module = module.to("meta")
    workload = Workload("net", module, lambda made: made.float().square().sum(), (given,), **options)  # type: ignore[arg-type]
    profile = load("device", device)
    graph = Predictor(workload, StepRequest(PyTorch())).planned(profile)[0][0].schedule.graph
    return [weight_gradient_copies_bytes(task, profile) for task in graph.tasks if task.convolution]


@pytest.mark.parametrize(("precision", "share"), [(None, 1.0), (Precision.AMP_BF16, 0.5), (Precision.FP32, 0.0)])
def test_the_gradient_of_a_2d_filter_holds_its_tensors_again(precision: Precision | None, share: float) -> None:
    """PyTorch's default rounds convolutions to TF32; without tensor cores there is nothing to copy for."""
    found = copies_2d(nn.Conv2d(IN, OUT, 3), "a100_40gb", precision=precision)
    assert found == [0, int(share * (IMAGES_2D + RESULT_2D + WEIGHT_2D))]


def test_kernels_of_the_images_own_layout_copy_nothing_in_two_dimensions() -> None:
    assert copies_2d(nn.Conv2d(IN, OUT, 1), "a100_40gb") == [0, 0]
    assert copies_2d(nn.Conv2d(IN, OUT, 3, groups=2), "a100_40gb") == [0, 0]
    assert copies_2d(nn.Conv2d(IN, OUT, 3), "a100_40gb", channels_last=True) == [0, 0]
    assert copies_2d(nn.Conv2d(IN, OUT, 3), "p100") == [0, 0]


def test_the_decoder_s_largest_convolution_holds_770_mib_more() -> None:
    """A convolution of the network that gave the rule, with 578 MiB of input and 192 MiB of output."""
    module = nn.Conv3d(96, 96, 3, dtype=HALF, device="meta")
    given = torch.empty(1, 96, 3, 1026, 1026, dtype=HALF, device="meta")
    found = prediction(module, given)
    assert found.parts_bytes["workspace"] // MIB == 578 + 192
    assert found.allocated_bytes == sum(found.parts_bytes.values())


def test_the_copies_take_time() -> None:
    module, given = (
        nn.Conv3d(96, 96, 1, dtype=HALF, device="meta"),
        torch.empty(1, 96, 8, 256, 256, dtype=HALF, device="meta"),
    )
    last = given.contiguous(memory_format=torch.channels_last_3d)
    assert prediction(module, given).step_time_s > 2 * prediction(module, last).step_time_s
