"""GPT-2 as Megatron-LM's fork in DeepSpeedExamples trains it in half precision, and Adam on single-precision copies.

Facts of microsoft/DeepSpeedExamples, Megatron-LM, in January 2021, with which ZeRO-Offload's 10 billion weights ran:

- model/gpt2_modeling.py, mpu/transformer.py: queries, keys and values are one product; the scores are divided,
  multiplied by a mask and lowered by another one in operators of their own, so that each writes all of them; three
  dropouts in a layer, one behind the embedding; the norm is one kernel (apex), GELU another (the just-in-time
  compiler). The head's weights are the embedding's.
- ``--checkpoint-activations``: each layer is a region of its own, whose second run is the whole layer.
- fp16/fp16.py, mpu/cross_entropy.py: weights are half precision, logits are converted to single precision and copied
  once more; their softmax is kept for the backward pass, which turns it into the gradient.
- The vocabulary is padded to a multiple of 128: 50,304.

A mixed-precision step keeps 16 bytes for each weight, and 20 with a single-precision gradient (ZeRO-Offload, Section 2;
ZeRO-Infinity, Section 3). Here the weights are the program's half-precision ones, and the copies are the optimizer's
states.
"""

from collections.abc import Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.adam import adam
from torch.utils.checkpoint import checkpoint

VOCABULARY = 50304
_LONGEST = 1024
_DROPOUT = 0.1
_MASKED = 10000.0


class Megatron(nn.Module):
    """A decoder in half precision; called with tokens (batch, length), it returns single-precision logits.

    Args:
        is_checkpointed: each layer is computed again in the backward pass.
    """

    mask: Tensor

    def __init__(
        self, *, layers: int, width: int, heads: int, vocabulary: int = VOCABULARY, is_checkpointed: bool = True
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(_LONGEST, width)
        self.dropout = nn.Dropout(_DROPOUT)
        self.layers = nn.ModuleList(_Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.is_checkpointed = is_checkpointed
        self.register_buffer("mask", torch.ones(_LONGEST, _LONGEST).tril(), persistent=False)
        self.half()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (batch, length, vocabulary)."""
        length = tokens.shape[1]
        positions = torch.arange(length, device=tokens.device).expand_as(tokens)
        features = self.dropout(self.words(tokens) + self.positions(positions))
        mask = self.mask[:length, :length]
        for layer in self.layers:
            if self.is_checkpointed and self.training:
                features = checkpoint(layer, features, mask, use_reentrant=True)
            else:
                features = layer(features, mask)
        return functional.linear(self.norm(features), self.words.weight).float()


class TokenLoss(nn.Module):
    """Cross entropy whose softmax is kept and becomes the gradient."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over all tokens: logits (batch, length, vocabulary), targets (batch, length)."""
        losses: Tensor = _CrossEntropy.apply(logits, targets)
        return losses.mean()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        shifted = logits.clone()
        shifted.sub_(shifted.max(dim=-1, keepdim=True)[0])
        softmax = shifted.exp()
        sums = softmax.sum(dim=-1)
        chosen = shifted.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        softmax.div_(sums.unsqueeze(-1))
        ctx.save_for_backward(softmax, targets)
        return sums.log() - chosen

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        softmax, targets = ctx.saved_tensors
        places = targets.unsqueeze(-1)
        softmax.scatter_add_(-1, places, torch.full_like(places, -1, dtype=softmax.dtype))
        softmax.mul_(gradients[0].unsqueeze(-1))
        return softmax, None


class MasterAdam(torch.optim.Optimizer):
    """Adam in one kernel on single-precision copies of half-precision weights, which are rounded afterwards.

    States of a weight: its copy, both averages, and the number of its steps.

    Args:
        fused: update weight by weight, so that the gradient of one at a time is in single precision. Kernels that read
            half-precision gradients (``FusedAdam`` of apex with ``master_weights``) hold none, and DeepSpeed's stage 3
            converts those of ``sub_group_size`` weights, 1e9, at a time. Otherwise those of all weights are converted
            first.
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3, fused: bool = False) -> None:
        super().__init__(params, {"lr": lr, "fused": fused})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the weights that have gradients."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for together in [[weight] for weight in weights] if group["fused"] else [weights]:
                self._update(together, group["lr"])

    def _update(self, weights: list[Tensor], lr: float) -> None:
        states = [self._state(weight) for weight in weights]
        copies = [state["copy"] for state in states]
        adam(
            copies,
            [weight.grad.float() for weight in weights if weight.grad is not None],
            [state["mean"] for state in states],
            [state["square"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
        for weight, copy in zip(weights, copies, strict=True):
            weight.copy_(copy)

    def _state(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["copy"] = weight.detach().float()
            state["mean"] = torch.zeros_like(state["copy"])
            state["square"] = torch.zeros_like(state["copy"])
            state["step"] = torch.zeros((), device=weight.device)
        return state


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.second_norm = nn.LayerNorm(width)
        self.mlp = _Mlp(width)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        features = features + self.attention(self.first_norm(features), mask)
        mixed: Tensor = features + self.mlp(self.second_norm(features))
        return mixed


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = features.shape
        parts = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.inputs(features).chunk(3, dim=-1)
        )
        query, key, value = parts
        scores = torch.matmul(query, key.transpose(-1, -2)) / sqrt(width // self.heads)
        scores = torch.mul(scores, mask) - _MASKED * (1.0 - mask)
        mixed = torch.matmul(self.dropout(scores.softmax(dim=-1)), value)
        mixed = mixed.transpose(1, 2).contiguous().view(batch, length, width)
        result: Tensor = self.dropout(self.output(mixed))
        return result


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.rise = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, features: Tensor) -> Tensor:
        inner = functional.gelu(self.rise(features), approximate="tanh")
        result: Tensor = self.dropout(self.output(inner))
        return result
