"""CUDA's operators in capture, on fake CUDA tensors; a whole CUDA capture needs a GPU."""

import pytest
import torch
from torch import Tensor

from membench.capture.operators.aten import kind_of, written_arguments
from membench.capture.operators.real_outputs import with_real_outputs
from membench.core.graph.task_graph import Kind
from membench.core.libraries.torch_internals import FakeTensorMode

aten = torch.ops.aten
BATCH_NORM = aten.cudnn_batch_norm.default


@pytest.fixture
def images() -> Tensor:
    """A transposed activation: a layout that is neither contiguous nor channels last."""
    with FakeTensorMode():
        return torch.empty(2, 4, 6, 6, device="cuda").transpose(2, 3)


def arguments(images: Tensor, *, training: bool) -> tuple[object, ...]:
    statistics = [images.new_empty(4) for _ in range(4)]
    return (images, *statistics, training, 0.1, 1e-5)


def test_batch_norm_of_cudnn_writes_its_statistics(images: Tensor) -> None:
    assert kind_of(BATCH_NORM) is Kind.BATCH_NORM
    assert kind_of(aten.cudnn_batch_norm_backward.default) is Kind.BATCH_NORM
    assert written_arguments(BATCH_NORM, arguments(images, training=True), {}) == (3, 4)
    assert written_arguments(BATCH_NORM, arguments(images, training=False), {}) == ()


def test_batch_norm_of_cudnn_returns_a_suggested_format_and_its_reserve(
    images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_get_cudnn_batch_norm_reserve_space_size", lambda images, training: 96)
    args = arguments(images, training=True)
    output, _, _, reserve = with_real_outputs(BATCH_NORM, args, BATCH_NORM(*args))
    assert output.is_contiguous() and output.device.type == "cuda"
    assert (reserve.shape, reserve.dtype) == ((96,), torch.uint8)
    frozen = arguments(images, training=False)
    assert with_real_outputs(BATCH_NORM, frozen, BATCH_NORM(*frozen))[3].numel() == 0


def test_without_a_gpu_the_reserve_is_unknown(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    args = arguments(images, training=True)
    assert with_real_outputs(BATCH_NORM, args, BATCH_NORM(*args))[3].numel() == 0
