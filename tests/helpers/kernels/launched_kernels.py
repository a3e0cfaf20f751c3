"""A step with a Triton kernel, interpreted on the CPU (TRITON_INTERPRET=1): the bits of plain PyTorch."""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

import membench


@triton.jit
def _doubled(source_ptr, target_ptr, elements, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(source_ptr + offsets, mask=offsets < elements)
    tl.store(target_ptr + offsets, source * 2, mask=offsets < elements)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, source: Tensor) -> Tensor:
        target = torch.empty_like(source)
        _doubled[lambda meta: (triton.cdiv(source.numel(), meta["BLOCK"]),)](source, target, source.numel(), BLOCK=16)
        return target

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        target = torch.empty_like(gradient)
        _doubled[(triton.cdiv(gradient.numel(), 16),)](gradient, target, gradient.numel(), BLOCK=16)
        return target


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 6)

    def forward(self, inputs: Tensor) -> Tensor:
        doubled: Tensor = Double.apply(self.first(inputs))
        return self.second(doubled)


if __name__ == "__main__":
    torch.manual_seed(0)
    network, inputs = Network(), torch.randn(7, 6)
    loss = nn.functional.mse_loss(network(inputs), inputs)
    loss.backward()
    expected = [weight.grad for weight in network.parameters()]
    network.zero_grad(set_to_none=True)
    for strategy in ("pytorch", "layrub_hybrid", "memonger"):
        step = membench.compile(network, nn.functional.mse_loss, (inputs, inputs), strategy=strategy)
        for _ in range(2):
            network.zero_grad(set_to_none=True)
            assert torch.equal(step(inputs, inputs), loss.detach())
            assert all(
                torch.equal(weight.grad, other) for weight, other in zip(network.parameters(), expected, strict=True)
            )
    print("agreed")
