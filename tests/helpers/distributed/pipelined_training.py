"""A program for `torchrun ... -m tests.helpers.distributed.pipelined_training OUTPUT CASE ...`.

Networks as stages of a pipeline, each under some strategies: is every step that of torch.distributed.pipelining, in all
bits, and is its peak the predicted one? The first process writes what all have found. A case is
``schedule/network/strategy``.
"""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

import membench
from membench.core.libraries.distributed import join, joined
from membench.execution.measurement import cpu_peak_bytes
from membench.models.llama import Llama, TokenLoss
from membench.steps.parallel.pipelined_step import Pipelined, PipelinedStep

STEPS, MICRO_BATCHES, SAMPLES = 2, 4, 8
CLASSES, TOKENS, WIDTH, BLOCKS = 10, 6, 12, 6


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, features: Tensor) -> Tensor:
        return features + self.down(torch.relu(self.up(self.norm(features))))


class _Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.norm(self.convolution(images)) + images)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 3, 2 * WIDTH, 0.0, "gelu", batch_first=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(features)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(self.norm(features))[0].contiguous()  # torch sends contiguous tensors alone, back as well


class _Parts(nn.Sequential):
    """Something before blocks of one class, and something behind them."""


def _tokens_in() -> nn.Module:
    return nn.Embedding(CLASSES, WIDTH)


def _llama() -> nn.Module:
    whole = Llama(layers=BLOCKS, width=WIDTH, heads=3, groups=1, inner=16, vocabulary=CLASSES, length=TOKENS)
    return _Rotated(whole)


class _Rotated(nn.Module):
    """A Llama's blocks with their table as a buffer of each, so that a stage passes features alone."""

    def __init__(self, whole: Llama) -> None:
        super().__init__()
        self.embed, self.norm, self.head = whole.embed, whole.norm, whole.head
        self.blocks = nn.ModuleList(_Turned(block, whole.rotation[:TOKENS]) for block in whole.blocks)

    def forward(self, features: Tensor) -> Tensor:
        features = features if self.embed is None else self.embed(features)
        for block in self.blocks:
            features = block(features)
        return features if self.head is None else self.head(self.norm(features))


class _Turned(nn.Module):
    def __init__(self, block: nn.Module, table: Tensor) -> None:
        super().__init__()
        self.block = block
        self.register_buffer("table", table.clone())

    def forward(self, features: Tensor) -> Tensor:
        return self.block(features, self.table)


NETWORKS = {
    "mlp": lambda: _Parts(nn.Linear(WIDTH, WIDTH), *(_Mixer() for _ in range(BLOCKS)), nn.Linear(WIDTH, CLASSES)),
    "cnn": lambda: _Parts(
        nn.Conv2d(1, 4, 3), *(_Convolution() for _ in range(BLOCKS)),
        nn.Sequential(nn.Flatten(), nn.Linear(144, CLASSES))
    ),
    "encoder": lambda: _Parts(_tokens_in(), *(_Attention() for _ in range(BLOCKS)), nn.Linear(WIDTH, CLASSES)),
    "decoder": lambda: _Parts(_tokens_in(), *(_Mixer() for _ in range(BLOCKS)), nn.LayerNorm(WIDTH)),
    "lstm": lambda: _Parts(_tokens_in(), *(_Recurrent() for _ in range(BLOCKS)), nn.Linear(WIDTH, CLASSES)),
    "llama": _llama,
}  # fmt: skip
CLASSES_OF = {"mlp": "_Mixer", "cnn": "_Convolution", "encoder": "_Attention", "decoder": "_Mixer",
              "lstm": "_Recurrent", "llama": "_Turned"}  # fmt: skip


def batch(name: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    if name == "mlp":
        return torch.randn(SAMPLES, WIDTH, generator=generator), torch.arange(SAMPLES)
    if name == "cnn":
        return torch.randn(SAMPLES, 1, 8, 8, generator=generator), torch.arange(SAMPLES)
    tokens = torch.randint(CLASSES, (SAMPLES, TOKENS), generator=generator)
    return tokens, tokens.roll(-1, 1)


def loss_of(name: str) -> Any:
    return nn.functional.cross_entropy if name in ("mlp", "cnn") else TokenLoss()


def network(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name]()


def stage_of(whole: nn.Module, begins: list[int], stage: int) -> nn.Module:
    """Return a stage as a module of its own, which shares its weights with the whole."""
    starts, ends = [0, *begins], [*begins, None]
    if isinstance(whole, _Rotated):
        part = _Rotated.__new__(_Rotated)
        nn.Module.__init__(part)
        part.embed = None if stage else whole.embed
        is_last = stage == len(begins)
        part.norm, part.head = (whole.norm, whole.head) if is_last else (None, None)
        part.blocks = nn.ModuleList(list(whole.blocks)[slice(starts[stage], ends[stage])])
        return part
    parts = list(whole)
    behind = [None if end is None else end + 1 for end in ends]
    return nn.Sequential(*parts[slice(starts[stage] + bool(stage), behind[stage])])


Results = dict[str, Tensor]


def results(module: nn.Module, loss: Tensor | None) -> Results:
    found = {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}
    module.zero_grad(set_to_none=True)
    found |= {name: buffer.clone() for name, buffer in module.named_buffers() if "table" not in name}
    return found if loss is None else found | {"loss": loss.detach().clone()}


@cache
def by_torch(schedule: str, name: str) -> list[Results]:
    """Return the results of steps of torch.distributed.pipelining, of this rank's stages and of the loss."""
    whole = network(name)
    pipeline = Pipelined(whole, MICRO_BATCHES, pipeline=schedule, wrapped=[CLASSES_OF[name]]).pipeline
    begins = [int(each.rpartition(".")[2]) - (name != "llama") for each in pipeline.begins]
    inputs, targets = batch(name)
    rank, ranks = joined().rank, joined().count
    stages = [
        PipelineStage(stage_of(whole, begins, stage), stage, pipeline.stages, torch.device("cpu"))
        for stage in range(rank, pipeline.stages, ranks)
    ]
    made = schedules.get_schedule_class(schedule)
    is_single = issubclass(made, schedules.PipelineScheduleSingle)
    run = made(stages[0] if is_single else stages, MICRO_BATCHES, loss_fn=loss_of(name))
    has_first, has_last = rank == 0, rank == (pipeline.stages - 1) % ranks
    found = []
    for _ in range(STEPS):
        losses: list[Tensor] = []
        run.step(*([inputs] if has_first else []), **({"target": targets, "losses": losses} if has_last else {}))
        loss = None
        if has_last:
            loss = losses[0] / MICRO_BATCHES
            for each in losses[1:]:
                loss = loss + each / MICRO_BATCHES
        found.append(results(whole, loss))
    return found


def found_in(schedule: str, name: str, strategy: str) -> tuple[list[str], int, int]:
    """Return where bits differ, the predicted and the measured peak."""
    module = network(name)
    inputs, targets = batch(name)
    references = by_torch(schedule, name)
    wrapped = Pipelined(module, MICRO_BATCHES, pipeline=schedule, wrapped=[CLASSES_OF[name]])
    step = membench.compile(wrapped, loss_of(name), (inputs, targets), strategy=strategy)
    assert isinstance(step, PipelinedStep)
    differing = []
    for number, reference in enumerate(references):
        mine = results(module, step(inputs, targets))
        if missing := reference.keys() - mine.keys():
            differing.append(f"step {number}: {sorted(missing)} missing")
        differing += [
            f"step {number}: {each}"
            for each, tensor in reference.items()
            if each in mine and not torch.equal(tensor, mine[each])
        ]
    peak = step.schedule.graph.external_bytes + cpu_peak_bytes(lambda: step(inputs, targets), step.backends)
    step.close()
    return differing, step.predicted_peak_bytes, peak


def main(output: str, *cases: str) -> None:
    found: dict[str, list[Any]] = {}
    with join("cpu", timeout_s=600):
        for case in cases:
            every: list[Any] = [None] * joined().count
            dist.all_gather_object(every, found_in(*case.split("/")))
            found[case] = every
        if joined().rank == 0:
            Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
