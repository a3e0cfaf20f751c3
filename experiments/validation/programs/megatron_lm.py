"""GPT as Megatron-LM trains it over thousands of GPUs in half precision, in April 2021.

Facts of NVIDIA/Megatron-LM at aed2f75e (11 April 2021), whose README has the measurements of that month:

- megatron/model/transformer.py: features are (length, batch, width) between the first layer and the last norm, so that
  no product copies its factors. Queries, keys and values are one product, in which those of a head are next to each
  other. Scale, causal mask and softmax are one kernel (fused_kernels/scaled_upper_triang_masked_softmax.h), predicted
  as one of softmax, which reads the masked half as well. Bias, dropout and the sum with the residual are one kernel of
  the just-in-time compiler, and so are bias and GELU.
- megatron/mpu/layers.py: tensor parallelism divides products by columns and then by rows, the embedding and the head by
  the vocabulary. Features are whole in each rank, and added up by an all-reduce behind attention and MLP, in the
  backward pass before them.
- ``--checkpoint-activations``: each layer is a region of its own, whose second run is the whole layer, its all-reduces
  included.
- megatron/mpu/cross_entropy.py: logits are converted to single precision, and stay in parts: three all-reduces of a
  number for each token.
- megatron/model/module.py: in a pipeline the last stage has a copy of the embedding for its head; the sum of both
  gradients, once in a step, is left out here.
- megatron/optimizer/optimizer.py: Adam on single-precision copies (`membench.models.megatron.MasterAdam`), which leaves
  out that gradients are unscaled, searched for what is not finite, and clipped.
"""

from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_DROPOUT = 0.1


@torch.library.custom_op("megatron_lm::bias_dropout_add", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def bias_dropout_add(update: Tensor, bias: Tensor, residual: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Return ``residual + dropout(update + bias)``, and what the dropout keeps of its input, as one kernel.

    Args:
        update, residual: tensors of one shape, whose last dimension is the bias's.
    """
    dropped, kept = torch.native_dropout(update + bias, rate, True)
    return residual + dropped, kept


@bias_dropout_add.register_fake
def _(update: Tensor, bias: Tensor, residual: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(residual), torch.empty_like(update, dtype=torch.bool)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    ctx.rate = inputs[3]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, None]:
    [kept] = ctx.saved_tensors
    of_update = torch.ops.aten.native_dropout_backward(gradient, kept, 1 / (1 - ctx.rate))
    return of_update, of_update.sum(dim=(0, 1)), gradient, None


bias_dropout_add.register_autograd(_gradients, setup_context=_keep)


class MegatronLM(nn.Module):
    """A decoder in half precision; called with tokens (batch, length), it returns logits (batch, length, vocabulary).

    Args:
        length: tokens of the longest sequence.
        is_tied: the head's weight is the embedding's; in a pipeline it has one of its own.
        checkpointed_layers: number of the first layers that are each computed again in the backward pass; None: all.
    """

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        length: int,
        vocabulary: int,
        is_tied: bool = True,
        checkpointed_layers: int | None = None,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(_DROPOUT)
        self.layers = nn.ModuleList(MegatronLayer(width, heads, number) for number in range(1, layers + 1))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if is_tied:
            self.head.weight = self.words.weight
        self.checkpointed_layers = layers if checkpointed_layers is None else checkpointed_layers
        self.half()

    @staticmethod
    def tensor_parallel_plan() -> dict[str, Any]:
        """Return the program's division of products as a plan for `parallelize_module`, without sequence parallelism.

        The number of heads must be a multiple of that of ranks, and so must the vocabulary.
        """
        from torch.distributed.tensor import Replicate  # takes a second
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        return {
            "words": RowwiseParallel(input_layouts=Replicate()),
            "layers.*.attention.inputs": ColwiseParallel(),
            "layers.*.attention.output": RowwiseParallel(),
            "layers.*.mlp.rise": ColwiseParallel(),
            "layers.*.mlp.fall": RowwiseParallel(),
            "head": ColwiseParallel(use_local_output=False),
        }

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (batch, length, vocabulary)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        features = self.dropout(self.words(tokens) + self.positions(positions))
        features = features.transpose(0, 1).contiguous()
        length = tokens.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        for position, layer in enumerate(self.layers):
            if position < self.checkpointed_layers and self.training:
                features = checkpoint(layer, features, mask, use_reentrant=True)
            else:
                features = layer(features, mask)
        logits: Tensor = self.head(self.norm(features.transpose(0, 1).contiguous()))
        return logits


class MegatronLayer(nn.Module):
    """Attention and MLP, each behind a norm; features (length, batch, width), mask (length, length) of hidden tokens.

    Args:
        number: from 1 on; scores are divided by it in half precision, and multiplied with it in single precision.
    """

    def __init__(self, width: int, heads: int, number: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width)
        self.attention = _Attention(width, heads, number)
        self.attention_bias = nn.Parameter(torch.zeros(width))
        self.second_norm = nn.LayerNorm(width)
        self.mlp = _Mlp(width)
        self.mlp_bias = nn.Parameter(torch.zeros(width))

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """Return the layer's result, of the features' shape."""
        mixed = self.attention(self.first_norm(features), mask)
        features = self._added(mixed, self.attention_bias, features)
        return self._added(self.mlp(self.second_norm(features)), self.mlp_bias, features)

    def _added(self, update: Tensor, bias: Tensor, features: Tensor) -> Tensor:
        if not self.training:
            return features + (update + bias)
        result: Tensor = bias_dropout_add(update, bias, features, _DROPOUT)[0]
        return result


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, number: int) -> None:
        super().__init__()
        self.size = width // heads
        self.number = number
        self.inputs = nn.Linear(width, 3 * width)
        self.dropout = nn.Dropout(_DROPOUT)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        length, batch, _ = features.shape
        parts = self.inputs(features).view(length, -1, 3 * self.size).chunk(3, dim=-1)
        query, key, value = (part.transpose(0, 1) for part in parts)  # (batch x heads, length, size)
        room = query.new_empty(query.shape[0], length, length)
        scores = torch.baddbmm(room, query, key.transpose(1, 2), beta=0.0, alpha=1 / (sqrt(self.size) * self.number))
        mixed = torch.bmm(self.dropout(self._shares(scores, mask)), value)
        result: Tensor = self.output(mixed.transpose(0, 1).reshape(length, batch, -1))
        return result

    def _shares(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Return the softmax of scores (batch x heads, length, length): by the program's kernel, or by operators."""
        if scores.shape[0] % 4 == 0 and 16 < scores.shape[-1] <= 2048:
            return scores.softmax(dim=-1)
        return (scores.float() * self.number).masked_fill_(mask, -10000.0).softmax(dim=-1).half()


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.rise = nn.Linear(width, 4 * width)
        self.fall = nn.Linear(4 * width, width, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = self.fall(functional.gelu(self.rise(features), approximate="tanh"))
        return result
