"""Muon for the matrices of a network, AdamW for its other weights.

Muon is defined for matrices alone (Jordan et al. 2024).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class MuonAndAdamW(torch.optim.Optimizer):
    """`torch.optim.Muon` for two-dimensional weights, embeddings and last layer included, and AdamW for others.

    Args:
        params: weights.
        options: options of Muon; AdamW has its learning rate and weight decay too, where they are given.
    """

    def __init__(self, params: Iterable[Tensor], **options: Any) -> None:
        weights = list(params)
        super().__init__(weights, {})
        both = {name: options[name] for name in ("lr", "weight_decay") if name in options}
        self._parts: list[torch.optim.Optimizer] = []
        if matrices := [weight for weight in weights if weight.dim() == 2]:
            self._parts.append(torch.optim.Muon(matrices, **options))
        if others := [weight for weight in weights if weight.dim() != 2]:
            self._parts.append(torch.optim.AdamW(others, **both))
        for part in self._parts:
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights."""
        for part in self._parts:
            part.step(closure)
