"""A program for `torchrun ... -m tests.helpers.distributed.tensor_parallel OUTPUT NETWORKS STRATEGIES`.

Networks whose weights are divided by torch's `parallelize_module`, a step of each in plain PyTorch and under several
strategies; every process writes its results.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

import membench
from membench.core.libraries.distributed import join, joined
from membench.models.llama import Llama, TokenLoss

VOCABULARY, LENGTH, BATCH_SIZE = 32, 8, 2


class Attention(nn.Module):
    """GPT-2's, with heads of four features, one product for queries, keys and values of each head, and biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        batch, length, _ = features.shape
        heads = (
            each(features).view(batch, length, -1, 4).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, -1))


class GptBlock(nn.Module):
    """Attention and an MLP, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.rise, self.fall = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        features = features + self.attention(self.first_norm(features))
        return features + self.fall(nn.functional.gelu(self.rise(self.second_norm(features))))


def gpt() -> nn.Module:
    blocks = [GptBlock(16) for _ in range(2)]
    return nn.Sequential(nn.Embedding(VOCABULARY, 16), *blocks, nn.Linear(16, VOCABULARY, bias=False))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(VOCABULARY, 16), nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, VOCABULARY), nn.Tanh()
    )


def llama() -> nn.Module:
    return Llama(layers=2, width=16, heads=4, groups=4, inner=32, vocabulary=VOCABULARY, length=LENGTH)


GPT_PLAN: dict[str, ParallelStyle] = {
    "0": RowwiseParallel(input_layouts=Replicate()),
    **{f"[12].attention.{each}": ColwiseParallel() for each in ("query", "key", "value")},
    "[12].attention.output": RowwiseParallel(),
    "[12].rise": ColwiseParallel(),
    "[12].fall": RowwiseParallel(),
    "3": ColwiseParallel(output_layouts=Replicate()),
}
NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, ParallelStyle]]] = {
    "mlp": (mlp, {"1": ColwiseParallel(), "3": RowwiseParallel()}),
    "gpt": (gpt, GPT_PLAN),
    "llama": (llama, Llama.tensor_parallel_plan()),
}


def parallel(name: str, mesh: DeviceMesh) -> nn.Module:
    """Return a network whose weights are the same for any number of processes."""
    torch.manual_seed(0)
    build, plan = NETWORKS[name]
    return parallelize_module(build(), mesh, plan)


def batch() -> tuple[Tensor, Tensor]:
    """Return tokens and targets, the same in all processes."""
    torch.manual_seed(1)
    return tuple(torch.randint(VOCABULARY, (BATCH_SIZE, LENGTH)) for _ in range(2))  # type: ignore[return-value]


def gradients(module: nn.Module) -> dict[str, Any]:
    """Return each weight's gradient: this process's part, its placements and all of it."""
    found = {}
    for name, weight in module.named_parameters():
        if isinstance(weight.grad, DTensor):
            part, placements = weight.grad.to_local().clone(), str(weight.grad.placements)
            found[name] = part, placements, weight.grad.full_tensor()
        elif weight.grad is not None:
            found[name] = weight.grad.clone(), "", weight.grad.clone()
    module.zero_grad(set_to_none=True)
    return found


def results(name: str, mesh: DeviceMesh, strategies: Sequence[str]) -> dict[str, Any]:
    """Return the loss and gradients of a network's step, and its predicted and measured peak under a strategy."""
    module, criterion = parallel(name, mesh), TokenLoss()
    inputs, targets = batch()
    loss = criterion(module(inputs), targets)
    loss.backward()
    found: dict[str, Any] = {"plain": (whole(loss), gradients(module), 0, 0)}
    for strategy in strategies:
        step = membench.compile(module, criterion, (inputs, targets), strategy=strategy)
        loss = step(inputs, targets)
        made = gradients(module)
        found[strategy] = whole(loss), made, step.predicted_peak_bytes, step.measure().peak_bytes
        step.close()
    return found


def whole(loss: Tensor) -> Tensor:
    return loss.full_tensor().detach() if isinstance(loss, DTensor) else loss.detach()


def main(output: str, names: str, strategies: str) -> None:
    with join("cpu", timeout_s=600), loss_parallel():
        mesh = init_device_mesh("cpu", (joined().count,), mesh_dim_names=("tp",))
        found = {name: results(name, mesh, strategies.split(",")) for name in names.split(",")}
        torch.save(found, f"{output}{joined().rank}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
