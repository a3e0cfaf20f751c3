"""Decoders as lit-gpt fine-tunes them: LoRA and adapters on frozen weights in bfloat16 or NF4.

Facts of Lightning-AI/litgpt at 0cc02afa (LoRA, 27 October 2023) and 0f021f3a (adapters with NF4, 18 January 2024),
under Lightning Fabric 2.1 with ``bf16-true``:

- lit_gpt/model.py: queries, keys and values are one product; the rotation is computed in single precision, because its
  tables are made anew for the longest example after the module was converted; attention is PyTorch's fused one, causal
  without a mask.
- lit_gpt/lora.py: LoRA of queries and values is one product with A, a convolution of two groups with B, and a copy into
  zeros. Dropout is on its branch only.
- lit_gpt/adapter.py: keys and values of the prompt are computed in the first validation, without gradients, and kept;
  the prompt itself is not trained by what follows.
- lit_gpt/rmsnorm.py: the norm is computed in single precision, operator by operator.
- On several GPUs, Fabric's FSDPStrategy wraps and checkpoints each layer. It keeps the original parameters
  (``use_orig_params``), and then FSDP computes and exchanges the gradients of frozen weights too, as those of a layer
  are one tensor with the trained ones.
- The head computes 128 tokens at a time (``lm_head_chunk_size``), and Fabric converts what the module returns to single
  precision.
"""

from collections.abc import Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from experiments.validation.programs.nf4 import Nf4Linear
from membench.core.checks import choice

_RANK = 8
_SCALE = 2.0  # alpha 16 over the rank
_LORA_DROPOUT = 0.05
_PROMPT = 10
"""Tokens of an adapter's prompt."""
_FIRST_ADAPTED = 2
"""The first layer with an adapter."""
_HEAD_TOKENS = 128

METHODS = ("lora", "adapter", "adapter_v2")
_TRAINED = {"lora": ("lora_",), "adapter": ("prompt",), "adapter_v2": ("prompt", "shift", "scale", "norm")}
"""Parts of the names of the weights that each method trains."""


class LitGpt(nn.Module):
    """A decoder with its trained additions, weights in bfloat16; called with tokens (batch, length).

    It returns the logits in single precision, in parts of 128 tokens. The options have lit_gpt/config.py's values.

    Args:
        length: tokens of the longest example; the rotation's tables have as many rows.
        groups: number of groups of queries that share keys and values; None: one per head.
        rotary: the part of each head that is rotated.
        parallel: attention and MLP have the same input, and their results are added to it at once.
        shared_norm: they have one norm.
        copies_group: the keys and values of a single group are copied for each head, as since 50b1974b (24 October
            2023); before, PyTorch had no fused attention for them.
        rms: norms are by root mean square.
        gated: the MLP is SiLU's, of three products.
        gelu: as `torch.nn.functional.gelu` names its kinds.
        method: one of `METHODS`.
        quantization: None, ``"nf4"`` or ``"nf4-dq"``, of all products with frozen weights, the head included.
        fsdp: as under FSDP: each layer is checkpointed, and all weights of the layers have gradients.
    """

    cosines: Tensor
    sines: Tensor

    def __init__(
        self,
        *,
        length: int,
        layers: int,
        width: int,
        heads: int,
        vocabulary: int,
        inner: int | None = None,
        groups: int | None = None,
        rotary: float = 0.25,
        parallel: bool = True,
        shared_norm: bool = False,
        copies_group: bool = True,
        bias: bool = True,
        head_bias: bool = False,
        rms: bool = False,
        gated: bool = False,
        gelu: str = "none",
        method: str = "lora",
        quantization: str | None = None,
        fsdp: bool = False,
    ) -> None:
        super().__init__()
        self.fsdp = fsdp
        choice(METHODS, "method", method)
        products = _Products(quantization, is_scaled=method == "adapter_v2")
        rotated = int(rotary * (width // heads))
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            _Layer(
                _Attention(
                    products, width, heads, groups or heads, rotated, bias, method, index, copies_group=copies_group
                ),
                _Mlp(products, width, inner or 4 * width, bias, gelu, gated=gated),
                [_norm(width, rms=rms) for _ in range(1 if shared_norm else 2)],
                parallel=parallel,
            )
            for index in range(layers)
        )
        self.norm = _norm(width, rms=rms)
        self.head = products.linear(width, vocabulary, bias=head_bias)
        self._choose_trained(method)
        angles = torch.outer(torch.arange(length).float(), _frequencies(rotated)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def _choose_trained(self, method: str) -> None:
        """Freeze all weights but those that a method trains, and convert them to bfloat16."""
        for name, weight in self.named_parameters():
            is_trained = any(part in name for part in _TRAINED[method])
            weight.requires_grad_(is_trained or (self.fsdp and name.startswith("layers.")))
            if weight.is_floating_point():
                weight.data = weight.data.bfloat16()

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """Return the logits of each 128 tokens, (batch, 128, vocabulary)."""
        length = tokens.shape[1]
        rotation = self.cosines[:length], self.sines[:length]
        features = self.embed(tokens)
        for layer in self.layers:
            if self.fsdp and self.training:
                features = checkpoint(layer, features, rotation, use_reentrant=False)
            else:
                features = layer(features, rotation)
        features = self.norm(features)
        logits = [self.head(part) for part in features.split(_HEAD_TOKENS, dim=1)]
        return [each.float() for each in logits]


class ChunkedLoss(nn.Module):
    """Cross entropy of the next token over logits in parts, which the program holds until the step has ended."""

    def forward(self, logits: list[Tensor], targets: Tensor) -> Tensor:
        """Return the mean over all tokens but the first.

        Args:
            logits: parts (batch, tokens, vocabulary).
            targets: (batch, length).
        """
        logits[-1] = logits[-1][:, :-1]
        self.held = logits
        following = targets[:, 1:].split(logits[0].shape[1], dim=1)
        parts = [
            functional.cross_entropy(
                part.reshape(-1, part.shape[-1]), labels.reshape(-1), ignore_index=-1, reduction="none"
            )
            for part, labels in zip(logits, following, strict=True)
        ]
        return torch.cat(parts).mean()


class _Products:
    """Builds products with frozen weights.

    Args:
        is_scaled: with a trained shift and scale of the results (adapter v2).
    """

    def __init__(self, quantization: str | None, *, is_scaled: bool) -> None:
        self._quantization = quantization
        self._is_scaled = is_scaled

    def linear(self, inputs: int, outputs: int, *, bias: bool) -> nn.Module:
        product: nn.Module
        if self._quantization is None:
            product = nn.Linear(inputs, outputs, bias=bias)
        else:
            product = Nf4Linear(inputs, outputs, bias=bias, double=self._quantization == "nf4-dq")
        return _Scaled(product, outputs) if self._is_scaled else product


class _Scaled(nn.Module):
    def __init__(self, product: nn.Module, outputs: int) -> None:
        super().__init__()
        self.product = product
        self.shift = nn.Parameter(torch.zeros(outputs))
        self.scale = nn.Parameter(torch.ones(outputs))

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * (self.product(features) + self.shift)


class _LoraQkv(nn.Module):
    """The product that makes queries, keys and values, with LoRA on queries and values."""

    columns: Tensor

    def __init__(self, product: nn.Module, width: int, kv_width: int) -> None:
        super().__init__()
        self.product = product
        self.dropout = nn.Dropout(_LORA_DROPOUT)
        self.parts = [width, kv_width]
        self.outputs = width + 2 * kv_width
        self.lora_a = nn.Parameter(torch.zeros(2 * _RANK, width))
        self.lora_b = nn.Parameter(torch.zeros(width + kv_width, _RANK))
        columns = torch.cat([torch.arange(width), torch.arange(width + kv_width, self.outputs)])
        self.register_buffer("columns", columns, persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        frozen = self.product(features)
        low = functional.linear(self.dropout(features), self.lora_a)
        change = self._widen(low.transpose(-2, -1), self.lora_b.unsqueeze(-1)).transpose(-2, -1)
        change = self._among_zeros(change) * _SCALE
        return frozen + change

    def _widen(self, low: Tensor, weight: Tensor) -> Tensor:
        if self.parts[0] == self.parts[1]:
            return functional.conv1d(low, weight, groups=2)
        pairs = zip(low.chunk(2, dim=1), weight.split(self.parts), strict=True)
        return torch.cat([functional.conv1d(part, own) for part, own in pairs], dim=1)

    def _among_zeros(self, change: Tensor) -> Tensor:
        change = change.transpose(0, 1)
        zeros = change.new_zeros((*change.shape[:-1], self.outputs)).view(-1, self.outputs)
        filled = zeros.index_copy(1, self.columns, change.reshape(-1, sum(self.parts)))
        return filled.view((*change.shape[:-1], self.outputs)).transpose(0, 1)


class _Attention(nn.Module):
    prompt_keys: Tensor
    prompt_values: Tensor

    def __init__(
        self,
        products: _Products,
        width: int,
        heads: int,
        groups: int,
        rotated: int,
        bias: bool,
        method: str,
        index: int,
        *,
        copies_group: bool,
    ) -> None:
        super().__init__()
        self.heads, self.groups, self.rotated, self.size = heads, groups, rotated, width // heads
        self.is_unfused = groups == 1 and not copies_group
        kv_width = groups * self.size
        qkv = products.linear(width, width + 2 * kv_width, bias=bias)
        self.qkv = _LoraQkv(qkv, width, kv_width) if method == "lora" else qkv
        self.project = products.linear(width, width, bias=bias)
        self.is_adapted = method != "lora" and index >= _FIRST_ADAPTED
        if self.is_adapted:
            self.prompt = nn.Parameter(torch.zeros(_PROMPT, width))
            self.prompt_gate = nn.Parameter(torch.zeros(1, 1, heads, 1))
            kept = torch.zeros(1, heads, _PROMPT, self.size, dtype=torch.bfloat16)
            self.register_buffer("prompt_keys", kept, persistent=False)
            self.register_buffer("prompt_values", kept.clone(), persistent=False)

    def forward(self, features: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return the result (batch, length, width) of features of that shape."""
        batch, length, width = features.shape
        qkv = self.qkv(features)
        of_each = self.heads // self.groups
        qkv = qkv.view(batch, length, self.groups, of_each + 2, self.size).permute(0, 2, 3, 1, 4)
        query, key, value = qkv.split((of_each, 1, 1), dim=2)
        if self.groups != self.heads and not self.is_unfused:
            shape = (batch, self.groups, of_each, length, self.size)
            key, value = key.expand(shape), value.expand(shape)
        query, key, value = (each.reshape(batch, -1, length, self.size) for each in (query, key, value))
        turned_query = _rotated(query[..., : self.rotated], *rotation)
        turned_key = _rotated(key[..., : self.rotated], *rotation)
        query = torch.cat((turned_query, query[..., self.rotated :]), dim=-1)
        key = torch.cat((turned_key, key[..., self.rotated :]), dim=-1)
        mixed = self._mixed(query, key, value)
        return self.project(mixed.reshape(batch, length, width))

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.is_unfused:
            return _unfused_attention(query, key, value).transpose(1, 2)
        scale = 1 / sqrt(self.size)
        mixed = functional.scaled_dot_product_attention(query, key, value, scale=scale, is_causal=True)
        mixed = mixed.transpose(1, 2)
        if not self.is_adapted:
            return mixed
        mask = torch.ones(query.shape[2], _PROMPT, dtype=torch.bool, device=query.device)
        prompted = functional.scaled_dot_product_attention(
            query, self.prompt_keys, self.prompt_values, attn_mask=mask, scale=scale
        )
        return mixed + self.prompt_gate * prompted.transpose(1, 2)


class _Mlp(nn.Module):
    def __init__(self, products: _Products, width: int, inner: int, bias: bool, gelu: str, *, gated: bool) -> None:
        super().__init__()
        self.gelu = gelu
        self.rise = products.linear(width, inner, bias=bias)
        self.gated = products.linear(width, inner, bias=bias) if gated else None
        self.project = products.linear(inner, width, bias=bias)

    def forward(self, features: Tensor) -> Tensor:
        inner = self.rise(features)
        if self.gated is None:
            inner = functional.gelu(inner, approximate=self.gelu)
            return self.project(inner)
        other = self.gated(features)
        inner = functional.silu(inner) * other
        return self.project(inner)


class _Layer(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module, norms: Iterable[nn.Module], *, parallel: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)
        self.attention = attention
        self.mlp = mlp
        self.parallel = parallel

    def forward(self, features: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        first = self.norms[0](features)
        mixed = self.attention(first, rotation)
        if self.parallel:
            second = self.norms[1](features) if len(self.norms) > 1 else first
            return self.mlp(second) + mixed + features
        features = mixed + features
        return self.mlp(self.norms[1](features)) + features


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, features: Tensor) -> Tensor:
        dtype = features.dtype
        features = features.float()
        mean = torch.mean(features * features, dim=-1, keepdim=True)
        normed = features * torch.rsqrt(mean + 1e-5)
        return (self.weight * normed).to(dtype)


def _unfused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return causal attention by the formula, operator by operator as PyTorch 2.1 has it."""
    scale = query.shape[-1] ** -0.25
    length = query.shape[2]
    shown = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    mask = torch.zeros(length, length, dtype=query.dtype, device=query.device)
    mask.masked_fill_(shown.logical_not(), -torch.inf)
    scores = torch.matmul(query * scale, (key * scale).transpose(-2, -1))
    scores.add_(mask)
    return torch.matmul(torch.softmax(scores, dim=-1), value)


def _norm(width: int, *, rms: bool) -> Any:
    return _RmsNorm(width) if rms else nn.LayerNorm(width)


def _frequencies(rotated: int) -> Tensor:
    return 1.0 / 10000 ** (torch.arange(0, rotated, 2).float() / rotated)


def _rotated(features: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    half = features.shape[-1] // 2
    left, right = features[..., :half], features[..., half:]
    turned = torch.cat((-right, left), dim=-1)
    rotated = (features * cosines) + (turned * sines)
    return rotated.type_as(features)
