"""A network that rotates pairs of features by the position of their token, as language models write it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from membench.core.step.workload import Workload

HEADS, SIZE, TOKENS = 2, 8, 6


class Rotations(nn.Module):
    """Two products with a rotation between them.

    Args:
        of_halves: a pair is a feature of the first half of a head and one of the second, joined by a concatenation;
            else neighbours, joined by a stack.
    """

    def __init__(self, *, of_halves: bool = False) -> None:
        super().__init__()
        self.first, self.last = (nn.Linear(HEADS * SIZE, HEADS * SIZE, bias=False) for _ in range(2))
        angles = torch.outer(torch.arange(float(TOKENS)), 10.0 ** -torch.arange(SIZE // 2))
        self.register_buffer("table", torch.stack([angles.cos(), angles.sin()], dim=-1), persistent=False)
        self.of_halves = of_halves

    def forward(self, rows: Tensor) -> Tensor:
        heads = self.first(rows).view(*rows.shape[:2], HEADS, SIZE)
        turned = self._of_halves(heads) if self.of_halves else self._of_neighbours(heads)
        found: Tensor = self.last(turned.flatten(2))
        return found

    def _of_neighbours(self, heads: Tensor) -> Tensor:
        pairs = heads.reshape(*heads.shape[:-1], -1, 2)
        table = self.table.view(-1, heads.shape[1], 1, SIZE // 2, 2)
        even = pairs[..., 0] * table[..., 0] - pairs[..., 1] * table[..., 1]
        odd = pairs[..., 1] * table[..., 0] + pairs[..., 0] * table[..., 1]
        return torch.stack([even, odd], dim=-1).flatten(3)

    def _of_halves(self, heads: Tensor) -> Tensor:
        cosines, sines = (self.table[:, None, :, at].repeat(1, 1, 2) for at in range(2))
        first, second = heads[..., : SIZE // 2], heads[..., SIZE // 2 :]
        return heads * cosines + torch.cat((-second, first), dim=-1) * sines


def rotations(*, of_halves: bool = False) -> Workload:
    torch.manual_seed(0)
    width = HEADS * SIZE
    inputs, targets = (torch.randn(2, TOKENS, width) for _ in range(2))
    return Workload("rotations", Rotations(of_halves=of_halves), functional.mse_loss, (inputs,), (targets,))
