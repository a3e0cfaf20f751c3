"""Llama 2 and 3 as two programs train them under FSDP: pytorch/torchtitan, and IBM's fms-fsdp.

Facts of pytorch/torchtitan, of April 2024 (217cc94e) and December 2024 (9dec370a), whose docs/performance.md has
measurements:

- torchtitan/models/llama/model.py: queries and keys are turned as complex numbers in single precision, keys and values
  are copied for the heads that share them, and head and embedding have weights of their own. The logits are converted
  to single precision, by the model in April and by the loss in December.
- torchtitan/models/norms.py: a norm by root mean square, operator by operator in single precision, or (`fused_rmsnorm`,
  8 and 13 billion weights in April) one Triton kernel. It is predicted as one of layer norm, which reads, keeps and
  writes as much.
- torchtitan/parallelisms/parallelize_llama.py: regions without reentry, and without states of the random generator,
  around each block (``"full"``), around every second one (``"layer"``), or around each with attention and every other
  product kept (``"op"``).
- `apply_compile` gives each block to `torch.compile`, with the region around it; embedding, last norm, head and loss
  are not compiled.
- ``fully_shard`` wraps each block: weights gathered in bfloat16, gradients reduced in single precision.
- torchtitan/float8.py: torchao converts the linear layers but the head (`float8`). That weights of shards can be
  gathered in float8 (``enable_fsdp_float8_all_gather``) is not predicted.

Facts of foundation-model-stack/fms-fsdp of March 2024 (5e522b4) with foundation-model-stack's fms of February 2024
(e9680cb3):

- fms/modules/positions.py turns by products with matrices, whose sums are made of four times the numbers; results are
  made contiguous.
- fms/modules/layernorm.py is operator by operator too; the loss is torch's, of logits in bfloat16.
- FSDP wraps each block; weights and reduced gradients are bfloat16. A selective row checkpoints every second block.
- main_training.py gives the network to `torch.compile` after FSDP has wrapped it, in the rows of May 2024 (ed74fd5).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from membench.core.checks import choice
from membench.models.checkpointing import selective_contexts
from membench.models.fine_tuning import in_float8

CHECKPOINTING = ("none", "full", "layer", "op")
ROTATIONS = ("complex", "matrix")
COMPILED = ("nothing", "blocks", "whole")


class Llama(nn.Module):
    """A decoder of tokens (batch, length) to logits (batch, length, vocabulary) in its weights' type.

    Args:
        inner: width of the MLP.
        length: tokens of the longest sequence; it has no weights.
        checkpointing: one of `CHECKPOINTING`.
        rotation: one of `ROTATIONS`, torchtitan's or fms's.
        fused_norm: norms are one kernel.
        single_logits: the model converts its logits to single precision.
        compiled: one of `COMPILED`: what is given to `torch.compile`.
        float8: linear layers of the blocks multiply in float8.

    Raises:
        MembenchError: an option is none of these; torchao, which float8 needs, is not installed.
    """

    rotation: Tensor

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        groups: int,
        inner: int,
        vocabulary: int,
        length: int,
        checkpointing: str = "none",
        rotation: str = "complex",
        fused_norm: bool = False,
        single_logits: bool = False,
        compiled: str = "nothing",
        float8: bool = False,
    ) -> None:
        super().__init__()
        choice(CHECKPOINTING, "checkpointing", checkpointing)
        choice(COMPILED, "compiled", compiled)
        choice(ROTATIONS, "rotation", rotation)
        norm = nn.LayerNorm if fused_norm else _RmsNorm
        rotate = _complex if rotation == "complex" else _by_matrix
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, groups, inner, norm, rotate) for _ in range(layers))
        if float8:
            in_float8(self.blocks)
        for block in self.blocks if compiled == "blocks" else ():
            block.compile()
        self.norm = _without_bias(norm(width))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.checkpointing, self.single_logits = checkpointing, single_logits
        if compiled == "whole":
            self.compile()
        angles = _angles(length, width // heads)
        table = _turns(angles) if rotation == "complex" else _matrices(angles)
        self.register_buffer("rotation", table, persistent=False)

    @staticmethod
    def tensor_parallel_plan(*, loss_parallel: bool = True) -> dict[str, Any]:
        """Return torchtitan's plan for `parallelize_module`: tensor-parallel products, sequence-parallel norms.

        ``torchtitan/parallelisms/parallelize_llama.py`` of December 2024, `apply_tp`. Ranks divide the heads of keys,
        and the length.

        Args:
            loss_parallel: logits stay in parts, for a loss within `torch.distributed.tensor.parallel.loss_parallel`.
        """
        from torch.distributed.tensor import Replicate, Shard  # takes a second
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
        )

        def gathered(*others: None) -> PrepareModuleInput:
            return PrepareModuleInput(input_layouts=(Shard(1), *others), desired_input_layouts=(Replicate(), *others))

        logits = Shard(-1) if loss_parallel else Replicate()
        return {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "blocks.*.first_norm": SequenceParallel(),
            "blocks.*.attention": gathered(None),
            "blocks.*.attention.query": ColwiseParallel(),
            "blocks.*.attention.key": ColwiseParallel(),
            "blocks.*.attention.value": ColwiseParallel(),
            "blocks.*.attention.output": RowwiseParallel(output_layouts=Shard(1)),
            "blocks.*.second_norm": SequenceParallel(),
            "blocks.*.mlp": gathered(),
            "blocks.*.mlp.gate": ColwiseParallel(),
            "blocks.*.mlp.rise": ColwiseParallel(),
            "blocks.*.mlp.fall": RowwiseParallel(output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=logits, use_local_output=not loss_parallel),
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (batch, length, vocabulary)."""
        features = self.embed(tokens)
        table = self.rotation[: tokens.shape[1]]
        for index, block in enumerate(self.blocks):
            features = self._computed(index, block, features, table)
        logits: Tensor = self.head(self.norm(features))
        return logits.float() if self.single_logits else logits

    def _computed(self, index: int, block: nn.Module, features: Tensor, table: Tensor) -> Tensor:
        again = partial(checkpoint, block, features, table, use_reentrant=False, preserve_rng_state=False)
        result: Tensor
        if self.checkpointing == "full" or (self.checkpointing == "layer" and index % 2):
            result = again()
        elif self.checkpointing == "op":
            result = again(context_fn=selective_contexts)
        else:
            result = block(features, table)
        return result


class LlamaBlock(nn.Module):
    """Attention and a gated MLP, each behind a norm; features (batch, length, width)."""

    def __init__(
        self,
        width: int,
        heads: int,
        groups: int,
        inner: int,
        norm: type[nn.Module],
        rotate: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.first_norm = _without_bias(norm(width))
        self.attention = _Attention(width, heads, groups, rotate)
        self.second_norm = _without_bias(norm(width))
        self.mlp = _GatedMlp(width, inner)

    def forward(self, features: Tensor, table: Tensor) -> Tensor:
        """Return the block's result, of the features' shape."""
        features = features + self.attention(self.first_norm(features), table)
        result: Tensor = features + self.mlp(self.second_norm(features))
        return result


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, rotate: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.size, self.of_each, self.rotate = width // heads, heads // groups, rotate
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, features: Tensor, table: Tensor) -> Tensor:
        batch, length, _ = features.shape
        query, key, value = (
            product(features).view(batch, length, -1, self.size) for product in (self.query, self.key, self.value)
        )
        query, key = self.rotate(query, table), self.rotate(key, table)
        if self.of_each > 1:
            key, value = (each.unsqueeze(3).expand(-1, -1, -1, self.of_each, -1).flatten(2, 3) for each in (key, value))
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, -1))
        return result


class _GatedMlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.rise = nn.Linear(width, inner, bias=False)
        self.fall = nn.Linear(inner, width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.fall(functional.silu(self.gate(features)) * self.rise(features))
        return result


class TokenLoss(nn.Module):
    """Cross entropy as torch computes it, in the logits' type.

    Args:
        single: the loss converts the logits to single precision.
        is_compiled: it is given to `torch.compile`, as by torchtitan from February 2025 on
            (torchtitan/components/loss.py).
    """

    def __init__(self, *, single: bool = False, is_compiled: bool = False) -> None:
        super().__init__()
        self.single = single
        if is_compiled:
            self.compile()

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over all tokens: logits (batch, length, vocabulary), targets (batch, length)."""
        flat = logits.flatten(0, 1)
        return functional.cross_entropy(flat.float() if self.single else flat, targets.flatten())


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, features: Tensor) -> Tensor:
        single = features.float()
        normed = single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + 1e-5)
        result: Tensor = normed.type_as(features) * self.weight
        return result


def _without_bias(norm: nn.Module) -> nn.Module:
    norm.register_parameter("bias", None)
    return norm


def _angles(length: int, size: int) -> Tensor:
    """Return by how much each pair of a head's numbers turns at each position: (length, size / 2)."""
    frequencies = 1.0 / 500000 ** (torch.arange(0, size, 2).float() / size)
    return torch.outer(torch.arange(length).float(), frequencies)


def _turns(angles: Tensor) -> Tensor:
    """Return the complex turns of each position, (length, 1, size / 2)."""
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def _matrices(angles: Tensor) -> Tensor:
    """Return the matrices of each position, (length, 1, size / 2, 2, 2)."""
    rows = torch.stack([angles.cos(), -angles.sin(), angles.sin(), angles.cos()], dim=-1)
    return rows.view(angles.shape[0], 1, angles.shape[1], 2, 2)


def _complex(features: Tensor, table: Tensor) -> Tensor:
    pairs = torch.view_as_complex(features.float().reshape(*features.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * table).flatten(3).type_as(features)


def _by_matrix(features: Tensor, table: Tensor) -> Tensor:
    pairs = features.float().reshape(*features.shape[:-1], -1, 1, 2)
    return (table.float() * pairs).sum(-1).flatten(3).type_as(features).contiguous()
