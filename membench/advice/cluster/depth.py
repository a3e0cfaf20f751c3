"""The depth of a network whose blocks are alike, and copies of it with few blocks.

A deep network is captured in ten times the time of one with few blocks. Where each block has the class, the attributes,
the weights and the buffers of another, the first two and the last two may still be run in another way, and odd ones in
another way than even ones, as where every second block is checkpointed; those in the middle repeat.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

AT_THE_ENDS = 2
"""Blocks at each end of a copy that stand for themselves."""
PERIOD = 2
"""In which blocks in the middle may differ."""


@dataclass(frozen=True)
class Depth:
    """The depth of a network whose blocks are alike.

    Attributes:
        container: name of the list of its blocks.
        blocks: their number.
    """

    container: str
    blocks: int

    @classmethod
    def of(cls, module: nn.Module, blocks: Sequence[str]) -> "Depth | None":
        """Return the depth of a module; None where its blocks differ, or are few.

        Args:
            blocks: names of its blocks, in order.
        """
        container = blocks[0].rpartition(".")[0] if blocks else ""
        if not container or not isinstance(module.get_submodule(container), nn.ModuleList | nn.Sequential):
            return None
        listed = list(module.get_submodule(container).children())
        names = [f"{container}.{number}" for number in range(len(listed))]
        kinds = [_kind(block) for block in listed]
        depth = cls(container, len(listed))
        is_alike = names == list(blocks) and all(map(_are_alike, kinds, kinds[PERIOD:]))
        return depth if is_alike and depth.blocks > depth.shallow else None

    @property
    def shallow(self) -> int:
        """Blocks of a copy that has what all have."""
        return 2 * AT_THE_ENDS + PERIOD + self.blocks % PERIOD

    def copy(self, module: nn.Module) -> nn.Module:
        """Return a copy of the module that has `shallow` blocks; the weights are those of the module."""
        shared: dict[int, Any] = {id(each): each for each in chain(module.parameters(), module.buffers())}
        copied = deepcopy(module, shared)
        listed: Any = copied.get_submodule(self.container)
        copied.set_submodule(self.container, listed[: self.shallow])
        return copied

    def source(self, block: int) -> int:
        """Return the block of the copy that stands for one of the module."""
        if block < AT_THE_ENDS:
            return block
        if block >= self.blocks - AT_THE_ENDS:
            return self.shallow - (self.blocks - block)
        return AT_THE_ENDS + (block - AT_THE_ENDS) % PERIOD


def _kind(block: nn.Module) -> list[tuple[object, ...]]:
    """Return what tells blocks apart: classes of modules with their attributes, and layouts of weights and buffers."""
    return [
        *((name, type(each), *attribute) for name, each in block.named_modules() for attribute in _attributes(each)),
        *(
            (name, each.shape, each.dtype, each.requires_grad, getattr(each, "placements", None))
            for name, each in block.named_parameters()
        ),
        *((name, each.shape, each.dtype) for name, each in block.named_buffers()),
    ]


def _attributes(module: nn.Module) -> Iterator[tuple[object, ...]]:
    """Yield the attributes of a module.

    Numbers, words and tuples, the lengths of tables such as those of hooks, types of others.
    """
    for name, value in vars(module).items():
        if isinstance(value, bool | int | float | str | None | tuple | torch.dtype):
            yield name, type(value), value
        else:
            yield name, type(value), len(value) if isinstance(value, dict | list | set) else None


def _are_alike(first: list[tuple[object, ...]], second: list[tuple[object, ...]]) -> bool:
    """Return whether two blocks at a distance of `PERIOD` are alike, but for a number of their own that counts them."""
    return len(first) == len(second) and all(
        one[:-1] == other[:-1] and (one[-1] == other[-1] or _counts(one[-1], other[-1]))
        for one, other in zip(first, second, strict=True)
    )


def _counts(first: object, second: object) -> bool:
    return type(first) is type(second) is int and second - first == PERIOD
