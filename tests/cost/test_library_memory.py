"""Workspaces that CUDA's libraries request."""

from dataclasses import replace

import pytest

from membench.core.configuration import load
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import GradientOf, Kind, Phase, Task
from membench.core.units import MIB
from membench.cost.library_memory import convolution_workspace_bytes, has_product, product_workspace_bytes
from tests.helpers.planning.chains import chain_of_convolutions


def convolution() -> Task:
    graph = chain_of_convolutions(1)
    return next(task for task in graph.tasks if task.convolution and task.phase is Phase.FORWARD)


def test_two_handles_of_cublas_hold_what_pytorch_shows_after_a_step() -> None:
    """17,039,360 bytes by ``torch.cuda.memory_allocated`` after any linear layer's first backward pass."""
    assert 2 * product_workspace_bytes(load("device", "a100_40gb")) == 17_039_360


@pytest.mark.parametrize("name", ["h100", "h100_96gb", "h200"])
def test_a_handle_on_hopper_holds_32_mib(name: str) -> None:
    """34,603,008 bytes were measured on an H200 under torch 2.11, of which cuBLASLt has 1 MiB."""
    assert product_workspace_bytes(load("device", name)) == 34_603_008 - MIB == 33_554_432


@pytest.mark.parametrize(
    ("capability", "expected"),
    [(None, 8_519_680), (8.9, 8_519_680), (10.0, 33_554_432), (10.3, 33_554_432), (12.0, 8_519_680)],
)
def test_blackwell_s_data_center_cards_hold_as_much_as_hopper(capability: float | None, expected: int) -> None:
    device = replace(load("device", "h100"), compute_capability=capability)
    assert product_workspace_bytes(device) == expected


@pytest.mark.parametrize("name", ["t4", "v100"])
def test_a_card_without_tf32_has_winograd_s_workspace(name: str) -> None:
    """4 images of 8 channels, 16 x 16: 16 tiles of 6 x 6 values of 4 bytes for each image's channel, 64 filters."""
    task, device = convolution(), load("device", name)
    assert convolution_workspace_bytes(task, device) == 36 * 4 * (2 * 4 * 8 * 16 + 64)
    gradient = replace(task, gradient_of=GradientOf.DATA)
    assert convolution_workspace_bytes(gradient, device) == 36 * 4 * (2 * 4 * 8 * 16 + 64)
    assert convolution_workspace_bytes(replace(task, precision=Precision.FP16), device) == 0


@pytest.mark.parametrize("name", ["k80", "rtx3070", "rtx3090", "a100_40gb", "h100"])
def test_other_cards_have_none(name: str) -> None:
    assert convolution_workspace_bytes(convolution(), load("device", name)) == 0


@pytest.mark.parametrize("name", ["t4", "v100", "k80", "p100", "rtx3090", "h100"])
def test_without_a_capability_the_formats_of_tensor_cores_tell_the_same(name: str) -> None:
    device = load("device", name)
    unknown = replace(device, compute_capability=None)
    assert convolution_workspace_bytes(convolution(), unknown) == convolution_workspace_bytes(convolution(), device)


def test_only_products_of_matrices_use_cublas() -> None:
    task = convolution()
    assert not has_product(task)
    assert has_product(replace(task, kind=Kind.LINEAR))
    assert convolution_workspace_bytes(replace(task, convolution=None), load("device", "t4")) == 0
