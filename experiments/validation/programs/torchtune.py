"""Llama 3.2 as torchtune trains it.

Facts of pytorch/torchtune at 1814feb1 (18 November 2024), whose README has the measurements:

- torchtune/modules/transformer.py: the head's weight is that of the embedding; the logits are converted to single
  precision, or, for a loss in chunks, computed in eight chunks of the length.
- torchtune/modules/rms_norm.py and models/llama3_1/_position_embeddings.py compute in single precision and convert
  back; packed batches pass the position of every token, for which rows of the rotation's table are gathered.
- torchtune/modules/attention.py: keys and values are copied for each of the heads that share them.
- torchtune/modules/loss/ce_chunked_output_loss.py: each chunk is converted to single precision within the loss.
- recipes/full_finetune_single_device.py scales the gradients before the update, unless that is in the backward pass.
- torchtune/training/_compile.py gives each layer to `torch.compile`, and the loss, or what a loss in chunks computes of
  each.
- torchtune/training/memory.py checkpoints every layer, without reentry.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_CHUNKS = 8
_LONGEST = 131072
"""Rows of the rotation's table."""


class Llama32(nn.Module):
    """Llama 3.2 3B, weights in bfloat16; called with tokens (batch, length).

    It returns the logits, or a list of eight chunks of them.

    Args:
        is_packed: the rotation's rows are gathered for each token, as by the position in its document.
        is_chunked: the logits are in chunks.
        is_checkpointed: each layer is computed again in the backward pass.
        is_compiled: each layer is given to `torch.compile`.
    """

    def __init__(
        self,
        *,
        layers: int = 28,
        width: int = 3072,
        heads: int = 24,
        groups: int = 8,
        inner: int = 8192,
        vocabulary: int = 128256,
        is_packed: bool = False,
        is_chunked: bool = False,
        is_checkpointed: bool = False,
        is_compiled: bool = False,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(_Layer(width, heads, groups, inner) for _ in range(layers))
        for layer in self.layers if is_compiled else ():
            layer.compile()
        self.norm = _RmsNorm(width)
        self.is_packed, self.is_chunked, self.is_checkpointed = is_packed, is_chunked, is_checkpointed
        for weight in self.parameters():
            weight.data = weight.data.bfloat16()
        size = width // heads
        frequencies = 1.0 / 500000 ** (torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(_LONGEST).float(), frequencies)
        self.register_buffer("rotation", torch.stack([angles.cos(), angles.sin()], dim=-1), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor | list[Tensor]:
        """Return the logits (batch, length, vocabulary) in single precision, or eight chunks of them in bfloat16."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens) if self.is_packed else None
        features = self.embed(tokens)
        for layer in self.layers:
            if self.is_checkpointed:
                features = checkpoint(layer, features, self.rotation, positions, use_reentrant=False)
            else:
                features = layer(features, self.rotation, positions)
        features = self.norm(features)
        if not self.is_chunked:
            return functional.linear(features, self.embed.weight).float()
        return [functional.linear(part, self.embed.weight) for part in features.chunk(_CHUNKS, dim=1)]


class TokenLoss(nn.Module):
    """Cross entropy of logits in single precision; they are freed once the loss has been computed.

    Args:
        is_compiled: it is given to `torch.compile`.
    """

    def __init__(self, *, is_compiled: bool = False) -> None:
        super().__init__()
        if is_compiled:
            self.compile()

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over all tokens: logits (batch, length, vocabulary), targets (batch, length)."""
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


class ChunkedLoss(TokenLoss):
    """Cross entropy of logits in chunks, each converted to single precision by itself.

    Compiled, a chunk keeps its logits in bfloat16 and its gradient has the logits' type.
    """

    def forward(self, logits: list[Tensor], targets: Tensor) -> Tensor:  # type: ignore[override]
        """Return the mean over all tokens: chunks of logits (batch, tokens, vocabulary), targets (batch, length)."""
        labels = [part.reshape(-1) for part in targets.chunk(_CHUNKS, dim=1)]
        chunks = [part.reshape(-1, part.shape[-1]) for part in logits]
        parts = [
            functional.cross_entropy(chunk.float(), label, reduction="sum")
            for chunk, label in zip(chunks, labels, strict=True)
        ]
        total: Tensor = sum(parts[1:], parts[0])
        return total / targets.numel()


class ScalingAdamW(torch.optim.AdamW):
    """AdamW after each gradient was multiplied with the reciprocal of the tokens, as the recipe does."""

    def step(self, closure: Any = None) -> Any:
        """Scale the gradients and update the weights."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.grad.mul_(1.0)
        return super().step(closure)


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size, self.of_each = width // heads, heads // groups
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, features: Tensor, rotation: Tensor, positions: Tensor | None) -> Tensor:
        batch, length, _ = features.shape
        query = self.query(features).view(batch, length, -1, self.size)
        query = _rotated(query, rotation, positions).transpose(1, 2)
        key = self.key(features).view(batch, length, -1, self.size)
        value = self.value(features).view(batch, length, -1, self.size)
        key = _rotated(key, rotation, positions).transpose(1, 2)
        value = value.transpose(1, 2)
        key, value = (each.unsqueeze(2).expand(-1, -1, self.of_each, -1, -1).flatten(1, 2) for each in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).contiguous().view(batch, length, -1)
        return self.output(mixed)


class _Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.rise = nn.Linear(width, inner, bias=False)
        self.output = nn.Linear(inner, width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        inner = functional.silu(self.gate(features))
        inner = inner * self.rise(features)
        return self.output(inner)


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.attention = _Attention(width, heads, groups)
        self.mlp = _Mlp(width, inner)
        self.first_norm = _RmsNorm(width)
        self.second_norm = _RmsNorm(width)

    def forward(self, features: Tensor, rotation: Tensor, positions: Tensor | None) -> Tensor:
        mixed = self.attention(self.first_norm(features), rotation, positions) + features
        return mixed + self.mlp(self.second_norm(mixed))


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, features: Tensor) -> Tensor:
        single = features.float()
        normed = single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + 1e-5)
        return normed.type_as(features) * self.scale


def _rotated(features: Tensor, rotation: Tensor, positions: Tensor | None) -> Tensor:
    """Rotate pairs of neighbours of features (batch, length, heads, size)."""
    pairs = features.float().reshape(*features.shape[:-1], -1, 2)
    rows = rotation[: features.shape[1]] if positions is None else rotation[positions]
    rows = rows.view(-1, pairs.shape[1], 1, pairs.shape[3], 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    cosines, sines = rows[..., 0], rows[..., 1]
    turned = torch.stack([even * cosines - odd * sines, odd * cosines + even * sines], dim=-1)
    return turned.flatten(3).type_as(features)
