"""MPT as MosaicML's benchmarks train it under FSDP: bfloat16 gathered weights, single-precision shards.

Facts of the programs whose throughput is published in mosaicml/llm-foundry, scripts/train/benchmarking/README.md. The
rows of the A100 of 40 GB are older than that repository: they came to mosaicml/examples on 4 April 2023 (9fa3ceb9),
whose release v0.0.4 ran in the image of PyTorch 1.13.1 and CUDA 11.7 (examples/llm/throughput/sweep.sh), with composer
0.13, flash-attn 0.2.8 and Triton 2.0.0.dev20221202 (examples/llm/requirements.txt).

- examples/llm/src/models/mosaic_gpt/mosaic_gpt.py, layers/: positions are learned, so that the longest sequence decides
  the number of weights; every product and norm has a bias; queries, keys and values are one product; GELU is the exact
  one; there is no dropout and the head's weight is the embedding's. The vocabulary of 50,257 is padded to 50,368.
- throughput/submit_benchmarks.py: attention is flash-attn's Triton kernel, without a mask, for samples are full; norms
  are in bfloat16 (LPLayerNorm). The Triton kernel keeps what flash attention keeps, with which it is predicted.
- flash_attn/losses/cross_entropy.py: the loss is one kernel forward and one backward, which keeps the logits in
  bfloat16 and writes a gradient of that size.
- composer/trainer/trainer.py, metrics/nlp.py: behind the backward pass of every micro-batch two metrics compute the
  cross entropy of the same logits, each again, within autocast: logarithms of softmax have the logits' format, as
  torch's ``cross_entropy_loss`` asks for it (aten/src/ATen/native/LossNLL.cpp), and are converted to single precision
  for ``nll_loss``. That is eight bytes for each logit at once, the logits included.
- composer/trainer/dist_strategy.py: `GPTBlock` is wrapped, and the rest is the root; a checkpointed block is a region
  without reentry inside of it, which PyTorch 1.13 runs again to its end. There is no `no_sync`: gradients are reduced
  after each micro-batch. The rows of H100 ran llm-foundry v0.3.0 with PyTorch 2.1 and composer 0.16, in which a region
  ends where all that is kept is there, and FSDP keeps the original parameters; the rest is as above.
- composer/optim/decoupled_weight_decay.py: Adam weight by weight, operator by operator; gradients are clipped by their
  norm.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

VOCABULARY = 50368
_METRICS = 2
"""Cross entropy and perplexity; each computes the cross entropy."""


class MPT(nn.Module):
    """A decoder; called with tokens (batch, length), it returns logits (batch, length, vocabulary).

    Args:
        length: the longest sequence, of which each position has its weights.
        is_checkpointed: each block is computed again in the backward pass.
        stops_early: no further than what is kept, as since PyTorch 2.1.
        has_metrics: the program's two metrics are computed behind the backward pass.
    """

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        length: int,
        vocabulary: int = VOCABULARY,
        is_checkpointed: bool = False,
        stops_early: bool = False,
        has_metrics: bool = True,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(MPTBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.is_checkpointed, self.stops_early = is_checkpointed, stops_early
        self.has_metrics = has_metrics

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (batch, length, vocabulary)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        outputs: list[Tensor] = []
        words: Tensor = self.words.weight
        if self.has_metrics and torch.is_grad_enabled():
            words = _Metrics.apply(words, tokens, outputs)
        features = functional.embedding(tokens, words) + self.positions(positions)
        for block in self.blocks:
            features = self._computed(block, features)
        logits = functional.linear(self.norm(features), words)
        outputs.append(logits.detach())
        return logits

    def _computed(self, block: nn.Module, features: Tensor) -> Tensor:
        if not (self.is_checkpointed and self.training):
            result: Tensor = block(features)
            return result
        with set_checkpoint_early_stop(self.stops_early):
            again: Tensor = checkpoint(block, features, use_reentrant=False)
            return again


class MPTBlock(nn.Module):
    """Attention and MLP, each behind a norm; features (batch, length, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm = nn.LayerNorm(width)
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width)
        self.rise = nn.Linear(width, 4 * width)
        self.fall = nn.Linear(4 * width, width)

    def forward(self, features: Tensor) -> Tensor:
        """Return the block's result, of the features' shape."""
        features = features + self.output(self._mixed(self.inputs(self.first_norm(features))))
        result: Tensor = features + self.fall(functional.gelu(self.rise(self.second_norm(features))))
        return result

    def _mixed(self, inputs: Tensor) -> Tensor:
        batch, length, _ = inputs.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in inputs.chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, -1)


class TokenLoss(nn.Module):
    """Cross entropy in one pass forward and one backward."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over all tokens: logits (batch, length, vocabulary), targets (batch, length)."""
        losses: Tensor = FusedCrossEntropy.apply(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
        return losses / targets.numel()


class DecoupledAdamW(torch.optim.Optimizer):
    """Adam, weight by weight, operator by operator, without decay, of gradients clipped by their norm.

    The program multiplies the gradients only where their norm exceeds one; here they always are.
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Clip the gradients and update the weights that have them."""
        weights = [weight for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(weight.grad) for weight in weights])
        factor = (1.0 / (torch.linalg.vector_norm(norms) + 1e-6)).clamp(max=1.0)
        for weight in weights:
            weight.grad.mul_(factor)
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, group["lr"])

    def _update(self, weight: Tensor, gradient: Tensor, rate: float) -> None:
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["mean"] = torch.zeros_like(weight)
            state["square"] = torch.zeros_like(weight)
        state["mean"].mul_(0.9).add_(gradient, alpha=0.1)
        state["square"].mul_(0.95).addcmul_(gradient, gradient, value=0.05)
        deviation = (state["square"].sqrt() / 1.0).add_(1e-8)
        weight.addcdiv_(state["mean"], deviation, value=-rate)


class _Metrics(torch.autograd.Function):
    """Changes nothing; its backward pass computes the metrics of outputs that the forward pass has appended meanwhile.

    It is the embedding's, whose gradient is the last to be complete.
    """

    @staticmethod
    def forward(ctx: Any, words: Tensor, tokens: Tensor, outputs: list[Tensor]) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.outputs = outputs
        return words.view_as(words)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        [tokens] = ctx.saved_tensors
        [logits] = ctx.outputs
        flat = logits.view(-1, logits.shape[-1])
        for _ in range(_METRICS):
            likelihoods = functional.log_softmax(flat, dim=-1)
            functional.nll_loss(likelihoods.float(), tokens.reshape(-1), reduction="sum")
        return gradients[0], None, None


class FusedCrossEntropy(torch.autograd.Function):
    """The sum over tokens, without what a compiler would not store."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        sums = torch.logsumexp(logits, dim=1)
        chosen = logits.gather(1, labels[:, None])[:, 0]
        ctx.save_for_backward(logits, labels, sums)
        return (sums - chosen).float().sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, _, _ = ctx.saved_tensors
        return torch.softmax(logits, dim=1), None
