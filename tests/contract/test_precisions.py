"""A step in any precision computes, bit for bit, what plain PyTorch does in it."""

import copy
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.core.errors import MembenchError, ShapeMismatch
from membench.core.graph.precision import Precision

STRATEGIES = ("eager", "layrub_hybrid", "memonger")


class Shared(nn.Module):
    """Convolutions, batch norm, dropout, attention, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.3)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.mixed = nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.drop(self.relu(self.norm(self.conv(images))))
        tokens = maps.flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        tokens = self.mixed(torch.tanh(self.mixed(tokens)))
        return self.head(tokens.mean(1))


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, targets)


def plain_step(module: nn.Module, images: Tensor, targets: Tensor, precision: Precision) -> Tensor:
    dtype = precision.autocast_dtype
    casting: AbstractContextManager[object] = torch.autocast("cpu", dtype) if dtype else nullcontext()
    with casting:
        loss = loss_of(module(images), targets)
    loss.backward()
    return loss.detach()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(4, 3, 6, 6), torch.randint(5, (4,))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("precision", [Precision.AMP_BF16, Precision.BF16, Precision.FP32, Precision.AMP_FP16])
def test_a_step_is_bit_equal_to_plain_pytorch(
    precision: Precision, strategy: str, batch: tuple[Tensor, Tensor]
) -> None:
    torch.manual_seed(0)
    module = Shared()
    plain = copy.deepcopy(module).to(precision.dtype)
    step = membench.compile(module, loss_of, batch, strategy=strategy, precision=precision)
    images, targets = batch[0].to(precision.dtype), batch[1]
    for seed in (3, 4):
        module.zero_grad()
        plain.zero_grad()
        torch.manual_seed(seed)
        expected = plain_step(plain, images, targets, precision)
        torch.manual_seed(seed)
        assert step(images, targets).equal(expected)
        for (name, weight), other in zip(module.named_parameters(), plain.parameters(), strict=True):
            assert weight.dtype == other.dtype
            assert weight.grad is not None and other.grad is not None
            assert weight.grad.equal(other.grad), name
        for buffer, other_buffer in zip(module.buffers(), plain.buffers(), strict=True):
            assert buffer.equal(other_buffer)


def test_half_precision_converts_the_module_and_takes_such_inputs(batch: tuple[Tensor, Tensor]) -> None:
    module = Shared()
    step = membench.compile(module, loss_of, batch, precision="bf16")
    assert {weight.dtype for weight in module.parameters()} == {torch.bfloat16}
    with pytest.raises(ShapeMismatch, match="bfloat16"):
        step(*batch)


def test_channels_last_converts_the_module_and_any_input(batch: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    module = Shared()
    plain = copy.deepcopy(module).to(memory_format=torch.channels_last)
    step = membench.compile(module, loss_of, batch, channels_last=True)
    assert module.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not module.conv.weight.is_contiguous()
    torch.manual_seed(5)
    images = batch[0].to(memory_format=torch.channels_last)
    expected = plain_step(plain, images, batch[1], Precision.FP32)
    torch.manual_seed(5)
    assert step(*batch).equal(expected)


def test_a_simulated_step_leaves_the_module_alone(batch: tuple[Tensor, Tensor]) -> None:
    module = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 5))
    peaks = [
        membench.compile(
            module, loss_of, batch, backend="simulated", device="rtx3090", precision=precision, channels_last=True
        ).predicted_peak_bytes
        for precision in ("fp32", "bf16")
    ]
    assert peaks[1] < peaks[0]
    assert {weight.dtype for weight in module.parameters()} == {torch.float32}
    assert all(weight.is_contiguous() for weight in module.parameters())


def test_the_cpu_refuses_tf32(batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(MembenchError, match="the CPU has no tf32; choose fp32, bf16 or amp_bf16"):
        membench.compile(Shared(), loss_of, batch, precision="tf32")


def test_an_unknown_precision_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(MembenchError, match="precision .* is not known.* are: fp32, tf32, bf16"):
        membench.compile(Shared(), loss_of, batch, precision="quarter")
