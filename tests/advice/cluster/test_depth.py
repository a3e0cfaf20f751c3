"""Whether the blocks of a network are alike, and the copy with few of them."""

from itertools import chain

import pytest
import torch
from torch import Tensor, nn

from membench.advice.cluster.depth import Depth


class Blocks(nn.Module):
    """Blocks, each of which knows its number."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(blocks))
        for index, block in enumerate(self.blocks):
            block.index = index

    def forward(self, features: Tensor) -> Tensor:
        for block in self.blocks:
            features = block(features)
        return self.head(features)


def depth_of(module: Blocks) -> Depth | None:
    return Depth.of(module, [f"blocks.{number}" for number in range(len(module.blocks))])


def test_blocks_that_differ_in_their_number_alone_are_alike() -> None:
    assert depth_of(Blocks(10)) == Depth("blocks", 10)


@pytest.mark.parametrize("block", range(10))
def test_blocks_whose_attributes_differ_are_not_alike(block: int) -> None:
    module = Blocks(10)
    module.blocks[block][1].p = 0.2  # type: ignore[index]
    assert depth_of(module) is None


def test_every_second_block_may_differ() -> None:
    module = Blocks(10)
    for block in module.blocks[::2]:
        block[1].p = 0.2  # type: ignore[index]
    assert depth_of(module) == Depth("blocks", 10)


@pytest.mark.parametrize(("blocks", "shallow"), [(6, None), (7, None), (8, 6), (9, 7)])
def test_a_copy_has_the_parity_and_the_weights_of_its_network(blocks: int, shallow: int | None) -> None:
    module = Blocks(blocks)
    depth = depth_of(module)
    assert (None if depth is None else depth.shallow) == shallow
    if depth is None:
        return
    copied = depth.copy(module)
    assert isinstance(copied, Blocks) and len(copied.blocks) == shallow and len(module.blocks) == blocks
    own = set(map(id, chain(module.parameters(), module.buffers())))
    assert all(id(each) in own for each in copied.parameters())
    features = torch.ones(2, 8)
    assert copied.eval()(features).shape == module(features).shape


@pytest.mark.parametrize("blocks", [8, 9, 20])
def test_a_block_stands_for_those_of_its_parity_in_the_middle(blocks: int) -> None:
    depth = Depth("blocks", blocks)
    sources = [depth.source(block) for block in range(blocks)]
    assert sources[:2] == [0, 1] and sources[-2:] == [depth.shallow - 2, depth.shallow - 1]
    assert set(sources) == set(range(depth.shallow)) - ({4} if blocks % 2 else set())
    assert all(source % 2 == block % 2 for block, source in enumerate(sources))
