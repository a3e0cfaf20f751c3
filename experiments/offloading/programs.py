"""A language model and an optimizer as MegaTrain's released program has them.

Facts of DLYuanGod/MegaTrain at 919520f, infinity/model/cpu_master.py and examples/sft/train.py:

- the head computes 128 tokens of each sample at a time; the cross entropy of each part has the logits' type.
- weights are in half precision, in host memory; DeepSpeedCPUAdam has both averages in single precision, and no copy of
  the weights.
- gradients of all weights are in host memory before they are clipped and applied.
- each layer's weights are in host memory a second time, in one piece; this copy is not predicted.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from membench.models.hugging_face import network
from membench.models.megatron import MasterAdam

_TOKENS = 128


class Decoder(nn.Module):
    """A decoder of transformers' with its head and its loss in parts."""

    def __init__(self, model_type: str, **options: Any) -> None:
        super().__init__()
        made: Any = network(model_type, **options)
        self.decoder, self.head = made.model, made.lm_head

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        """Return the mean cross entropy of all tokens as the loss of an output: tokens and labels (batch, length)."""
        from transformers.modeling_outputs import CausalLMOutput

        features = self.decoder(input_ids=input_ids).last_hidden_state
        total = torch.zeros((), device=labels.device)
        for part, targets in zip(features.split(_TOKENS, dim=1), labels.split(_TOKENS, dim=1), strict=True):
            logits = self.head(part)
            total = total + functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return CausalLMOutput(loss=total / labels.numel())


class CpuAdam(MasterAdam):
    """Adam on half-precision weights with averages in single precision, and no copy of the weights that stays."""

    def _state(self, weight: Tensor) -> dict[str, Tensor]:
        kept = super()._state(weight)
        kept.pop("copy", None)
        return {**kept, "copy": weight.detach().float()}
