"""A program for `torchrun ... -m tests.helpers.distributed.sharded_training OUTPUT CASE ...`.

Networks that torch's `fully_shard` or `DistributedDataParallel` has wrapped, each under some strategies: is every step
that of plain PyTorch, in all bits, and is its peak the predicted one? The first process writes what all have found. A
case is ``wrapper/network/strategy``, or ``wrapper/network/strategy/adamw`` for a step that updates the weights; the
strategy may be ``deferred``, of which all steps but the last leave updates to the next.
"""

import json
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torchvision.models.vision_transformer import VisionTransformer

import membench
from membench.capture.capture import Captures
from membench.core.errors import UnsupportedStrategy
from membench.core.libraries.distributed import join, joined
from membench.core.step.workload import Workload
from membench.execution.measurement import cpu_peak_bytes
from membench.models.digits import digits_cnn
from membench.models.llama import Llama, TokenLoss
from membench.models.lstm import SequenceLoss, language_model
from membench.models.resnet import cifar_resnet
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compile import build_step
from membench.steps.parallel.real_ranks import real_ranks
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.request import StepRequest
from membench.strategies.base import find_strategy
from membench.strategies.zero_infinity import ZeroInfinity

STEPS = 3
CLASSES, TOKENS, SAMPLES = 10, 6, 4


class Found(NamedTuple):
    """What a process has found: where bits differ, the predicted and the measured peak."""

    differing: tuple[str, ...]  # or why the step is refused
    predicted_bytes: int
    measured_bytes: int


class _Decoder(nn.Module):
    """GPT-2's: learned positions, a head that shares its weights with the embedding, dropout."""

    def __init__(self, width: int = 12, blocks: int = 2) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(CLASSES, width), nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 3, 4 * width, 0.1, "gelu", norm_first=True, batch_first=True)
            for _ in range(blocks)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.words(tokens) + self.positions.weight
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS)
        for block in self.blocks:
            features = block(features, src_mask=mask, is_causal=True)
        return self.head(self.norm(features))


class Network(NamedTuple):
    """A network, and classes whose modules are wrapped one by one; images have that many channels, rows and columns."""

    build: Callable[[], nn.Module]
    wrapped: tuple[str, ...]
    loss: Callable[..., Tensor]
    image: tuple[int, int, int] | None = None


NETWORKS = {
    "digits_cnn": Network(
        digits_cnn, ("Conv2d", "Linear"), nn.functional.cross_entropy, (1, 8, 8)
    ),
    "resnet": Network(
        lambda: cifar_resnet(8), ("CifarBlock",), nn.functional.cross_entropy, (3, 16, 16)
    ),
    "vit": Network(
        lambda: VisionTransformer(16, 8, 2, 3, 12, 24, dropout=0.1, num_classes=CLASSES),
        ("EncoderBlock",),
        nn.functional.cross_entropy,
        (3, 16, 16),
    ),
    "gpt2": Network(_Decoder, ("TransformerEncoderLayer",), TokenLoss()),
    "llama": Network(
        partial(
            Llama, layers=2, width=16, heads=4, groups=2, inner=24, vocabulary=CLASSES, length=TOKENS
        ),
        ("LlamaBlock",),
        TokenLoss(),
    ),
    "lstm": Network(
        partial(language_model, vocabulary=CLASSES, hidden_size=7, layers=2), ("LSTM",), SequenceLoss()
    ),
}  # fmt: skip


def batch(network: Network, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 + rank)
    if network.image:
        images = torch.randn(SAMPLES, *network.image, generator=generator)
        return images, torch.randint(CLASSES, (SAMPLES,), generator=generator)
    tokens = torch.randint(CLASSES, (SAMPLES, TOKENS), generator=generator)
    return tokens, tokens.roll(-1, 1)


def _fully_sharded(network: Network, **options: Any) -> nn.Module:
    module = network.build()
    for layer in module.modules():
        if type(layer).__name__ in network.wrapped:
            fully_shard(layer, **options)
    return fully_shard(module, **options)


def _in_grid(network: Network) -> nn.Module:
    """Divide the weights over half of the processes; the others have the same shards."""
    mesh = init_device_mesh("cpu", (2, joined().count // 2), mesh_dim_names=("dp", "fsdp"))
    return _fully_sharded(network, mesh=mesh)


WRAPPERS: dict[str, Callable[[Network], nn.Module]] = {
    "fully_shard": _fully_sharded,
    "kept": partial(_fully_sharded, reshard_after_forward=False),
    "grid": _in_grid,
    "ddp": lambda network: DistributedDataParallel(network.build()),
    "small_buckets": lambda network: DistributedDataParallel(network.build(), bucket_cap_mb=0.002),
}


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def unwrapped(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


Results = dict[str, Tensor]
"""Copies of the loss, gradients or weights, and buffers of a step by name."""


def results(module: nn.Module, loss: Tensor, number: int) -> Results:
    """Copy the results of a step; where the optimizer has cleared gradients, the weights are results.

    Gradients of shards are cleared after all steps but the first, so that the second adds to them.
    DistributedDataParallel averages the sum once more, which rounds differently.
    """
    inner = unwrapped(module)
    found = {"loss": loss.detach().clone()}
    for name, weight in inner.named_parameters():
        found[name] = local(weight if weight.grad is None else weight.grad).detach().clone()
    if number or isinstance(module, DistributedDataParallel):
        module.zero_grad(set_to_none=True)
    return found | {name: buffer.clone() for name, buffer in inner.named_buffers()}


def wrapped(network: Network, wrapper: str) -> nn.Module:
    torch.manual_seed(0)
    return WRAPPERS[wrapper](network)


def optimizer_of(module: nn.Module, *, updates: bool) -> torch.optim.Optimizer | None:
    return torch.optim.AdamW(module.parameters(), lr=0.01) if updates else None


@cache
def by_torch(wrapper: str, name: str, *, updates: bool) -> list[Results]:
    """Return the results of plain steps one after another."""
    network = NETWORKS[name]
    module = wrapped(network, wrapper)
    optimizer = optimizer_of(module, updates=updates)
    inputs, targets = batch(network, joined().rank)

    def step() -> Tensor:
        loss = network.loss(module(inputs), targets)
        loss.backward()
        return loss

    if isinstance(module, DistributedDataParallel):  # it lays its buckets out again after the first step
        before = [buffer.clone() for buffer in module.buffers()]
        step()
        module.zero_grad(set_to_none=True)
        for buffer, earlier in zip(module.buffers(), before, strict=True):
            buffer.copy_(earlier)
    found = []
    torch.manual_seed(joined().rank)
    for number in range(STEPS):
        loss = step()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()
        found.append(results(module, loss, number))
    return found


COST = MeasuredCost(torch.device("cpu"))
DEFERRED = "deferred"


def found_in(wrapper: str, name: str, strategy: str, *, updates: bool) -> Found:
    network = NETWORKS[name]
    given = wrapped(network, wrapper)
    optimizer = optimizer_of(given, updates=updates)
    inputs, targets = batch(network, joined().rank)
    if updates:
        method = ZeroInfinity(deferred_share=0.5) if strategy == DEFERRED else strategy
        try:
            step = membench.compile(given, network.loss, (inputs, targets), strategy=method, optimizer=optimizer)
        except UnsupportedStrategy as error:
            return Found((str(error),), 0, 0)
    else:
        module, ranks = real_ranks(given)
        captures = Captures(Workload(name, module, network.loss, (inputs,), (targets,)), COST.device)
        step = build_step(captures, COST, StepRequest(find_strategy(strategy)()), ranks=ranks)
    assert isinstance(step, CompiledStep)
    references = by_torch(wrapper, name, updates=updates)
    torch.manual_seed(joined().rank)
    differing = []
    for number, reference in enumerate(references):
        loss = step(inputs, targets)
        if strategy == DEFERRED and number + 1 < STEPS:
            differing += [] if torch.equal(loss, reference["loss"]) else [f"step {number}: loss"]
            continue
        step.restore()
        mine = results(given, loss, number)
        differing += [
            f"step {number}: {each}"
            for each, tensor in reference.items()
            if not torch.equal(tensor, mine[each]) or tensor.stride() != mine[each].stride()
        ]
    peak = step.schedule.graph.external_bytes + cpu_peak_bytes(lambda: step(inputs, targets), step.backends)
    step.close()
    return Found(tuple(differing), step.predicted_peak_bytes, peak)


def main(output: str, *cases: str) -> None:
    found: dict[str, list[Any]] = {}
    with join("cpu", timeout_s=600):  # on a busy machine the first process plans for long
        for case in cases:
            wrapper, name, strategy, *update = case.split("/")
            every: list[Any] = [None] * joined().count
            mine = found_in(wrapper, name, strategy, updates=bool(update))
            dist.all_gather_object(every, tuple(mine))
            found[case] = every
        if joined().rank == 0:
            Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
