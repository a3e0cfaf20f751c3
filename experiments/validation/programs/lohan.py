"""GPT-2 as LoHan's published program fine-tunes it in half precision.

Facts of RC4ML/LoHan, gpt_model.py and main.py: attention is FlashAttention, GELU the exact one; attention and MLP of a
layer are a region of recomputation each; there is no head, and the loss is the mean square of the features' distance to
random ones. The program lays its tokens out as (1,024, batch), so that attention is within a row of a batch; here it is
within 1,024 tokens, in which it is at most 3 % of the operations.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_LONGEST = 1024
_DROPOUT = 0.1


class LoHan(nn.Module):
    """A decoder in half precision; called with tokens (batch, length), it returns features (batch, length, width).

    Args:
        is_checkpointed: each half of a layer is computed again in the backward pass.
    """

    def __init__(
        self, *, layers: int, width: int, heads: int, vocabulary: int = 50257, is_checkpointed: bool = True
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(_LONGEST, width)
        self.dropout = nn.Dropout(_DROPOUT)
        self.halves = nn.ModuleList(half for _ in range(layers) for half in (_Attention(width, heads), _Mlp(width)))
        self.norm = nn.LayerNorm(width)
        self.is_checkpointed = is_checkpointed
        self.half()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the features (batch, length, width)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        features = self.dropout(self.words(tokens) + self.positions(positions))
        for half in self.halves:
            if self.is_checkpointed and self.training:
                features = checkpoint(half, features, use_reentrant=True)
            else:
                features = half(features)
        normed: Tensor = self.norm(features)
        return normed


class FeatureLoss(nn.Module):
    """The mean square of the distance to given features, as the program has it in place of a head."""

    def forward(self, features: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over features and targets (batch, length, width)."""
        return functional.mse_loss(features, targets.to(features.dtype))


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, features: Tensor) -> Tensor:
        batch, length, width = features.shape
        parts = self.inputs(self.norm(features)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        result: Tensor = self.dropout(self.output(mixed)) + features
        return result


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rise = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.dropout(self.output(functional.gelu(self.rise(self.norm(features))))) + features
        return result
