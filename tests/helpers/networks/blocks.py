"""A network of equal blocks, as a transformer is one, without random numbers."""

import torch
from torch import Tensor, nn

from membench.core.step.workload import Workload
from tests.helpers.devices import DEVICE

WORDS, LENGTH = 11, 6


class Block(nn.Module):
    """Normalization and two products, with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.rise = nn.Linear(width, 2 * width)
        self.fall = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.fall(nn.functional.gelu(self.rise(self.norm(x))))
        return y


class Blocks(nn.Module):
    """Embedding, blocks and a head.

    Args:
        shared: the head's weights are the embedding's.
        statistics: a batch norm runs behind each block, the same one.
    """

    def __init__(self, blocks: int, width: int = 8, *, shared: bool = False, statistics: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.statistics = nn.BatchNorm1d(LENGTH) if statistics else None
        self.head = nn.Linear(width, WORDS)
        if shared:
            self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
            x = x if self.statistics is None else self.statistics(x)
        scores: Tensor = self.head(x).transpose(1, 2)
        return scores


def blocks_workload(batch_size: int, blocks: int = 3, width: int = 8, **options: bool) -> Workload:
    """Return the prediction of each next word, whose inputs and targets share memory."""
    torch.manual_seed(0)
    module = Blocks(blocks, width, **options).to(DEVICE)
    words = torch.randint(WORDS, (batch_size, LENGTH + 1)).to(DEVICE)
    return Workload("blocks", module, nn.functional.cross_entropy, (words[:, :-1],), (words[:, 1:],))
