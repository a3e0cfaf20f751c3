"""The program of each of several processes: `torchrun ... -m tests.helpers.sharded_training OUTPUT [WRAPPER ...]`.

Networks that torch's `fully_shard` or `DistributedDataParallel` has wrapped, each under some strategies: is every step that of
plain PyTorch, in all bits, and is its peak the predicted one? The first process writes what all have found.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torchvision.models.vision_transformer import VisionTransformer

from membench.capture.capture import Captures
from membench.core.distributed import join, joined
from membench.core.workload import Workload
from membench.execution.measurement import cpu_peak_bytes
from membench.models.digits import digits_cnn
from membench.models.llama import Llama, TokenLoss
from membench.models.lstm import SequenceLoss, language_model
from membench.models.resnet import cifar_resnet
from membench.profiling.measured_cost import MeasuredCost
from membench.steps.compile import build_step
from membench.steps.compiled_step import CompiledStep
from membench.steps.real_ranks import real_ranks
from membench.strategies.base import find_strategy

STRATEGIES = ("eager", "layrub_hybrid", "joint")
CLASSES, TOKENS, SAMPLES = 10, 6, 4


class Found(NamedTuple):
    """What a process has found: where bits differ, the predicted and the measured peak."""

    differing: tuple[str, ...]
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
    "fully_shard, kept": partial(_fully_sharded, reshard_after_forward=False),
    "grid": _in_grid,
    "ddp": lambda network: DistributedDataParallel(network.build()),
    "ddp, small buckets": lambda network: DistributedDataParallel(network.build(), bucket_cap_mb=0.002),
}


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Results(NamedTuple):
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, module: nn.Module, loss: Tensor) -> "Results":
        """Copy a loss, gradients, which are cleared, and buffers; names are those of the module without a wrapper."""
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        found = {"loss": loss.detach().clone()}
        for name, weight in inner.named_parameters():
            assert weight.grad is not None
            found[f"{name}.grad"] = local(weight.grad).clone()
        found |= {name: buffer.clone() for name, buffer in inner.named_buffers()}
        module.zero_grad(set_to_none=True)
        return cls(found)

    def differing(self, others: "Results") -> tuple[str, ...]:
        pairs = ((name, tensor, others.tensors[name]) for name, tensor in self.tensors.items())
        return tuple(
            name for name, one, two in pairs if not (torch.equal(one, two) and one.stride() == two.stride())
        )


def run(step: Callable[[], Tensor], module: nn.Module, times: int) -> list[Results]:
    """Return the results of steps one after another, from the same random state."""
    torch.manual_seed(joined().rank)
    return [Results.of(module, step()) for _ in range(times)]


def wrapped(network: Network, wrapper: str) -> nn.Module:
    torch.manual_seed(0)
    return WRAPPERS[wrapper](network)


def found_in(name: str, wrapper: str) -> Iterator[tuple[str, Found]]:
    """Yield the findings under each strategy."""
    network = NETWORKS[name]
    inputs, targets = batch(network, joined().rank)
    plain = wrapped(network, wrapper)

    def by_torch() -> Tensor:
        loss = network.loss(plain(inputs), targets)
        loss.backward()
        return loss

    reference = run(by_torch, plain, 3)
    module, ranks = real_ranks(wrapped(network, wrapper))
    captures = Captures(Workload(name, module, network.loss, (inputs,), (targets,)), torch.device("cpu"))
    cost = MeasuredCost(torch.device("cpu"))
    buffers = {each: buffer.clone() for each, buffer in module.named_buffers()}
    for strategy in STRATEGIES:
        for each, buffer in module.named_buffers():
            buffer.copy_(buffers[each])
        step = build_step(captures, find_strategy(strategy)(), cost, None, ranks=ranks)
        assert isinstance(step, CompiledStep)
        results = run(lambda: step(inputs, targets), module, 3)
        graph = step.schedule.graph
        peak = graph.external_bytes + cpu_peak_bytes(lambda: step(inputs, targets), step.backends)
        module.zero_grad(set_to_none=True)
        differing = tuple(
            f"step {number}: {each}"
            for number, (mine, its) in enumerate(zip(results, reference, strict=True))
            for each in its.differing(mine)
        )
        step.close()
        yield strategy, Found(differing, step.predicted_peak_bytes, peak)


def main(output: str, *wrappers: str) -> None:
    found: dict[tuple[str, str, str], list[Found]] = {}
    with join("cpu", timeout_s=60):
        for wrapper in wrappers:
            for name in NETWORKS:
                for strategy, mine in found_in(name, wrapper):
                    every: list[Any] = [None] * joined().count
                    dist.all_gather_object(every, mine)
                    found[wrapper, name, strategy] = every
        if joined().rank == 0:
            torch.save({key: [tuple(each) for each in every] for key, every in found.items()}, output)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with suppress(BrokenPipeError):
        main(*sys.argv[1:])
