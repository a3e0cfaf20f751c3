"""What a micro-batch's step holds and computes, block by block of the network, and how that of a deep network follows from a shallow one.

A deep network is captured in ten times the time of one with few blocks, and its blocks are alike: each has the class, the weights and the
attributes of another. So the numbers of a copy with few blocks are those of the network, with the ones in the middle repeated. The first
two and the last two may differ from them, and odd ones from even ones, as where every second block is checkpointed. It is assumed that a
forward pass does not treat other blocks in another way; where the whole network is captured, its numbers are compared.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain
from math import isclose
from typing import Any

from torch import nn

from membench.core.task_graph import AFTER_THE_LOSS, ARGUMENT_ROLES, Phase, Role, Task, TaskGraph
from membench.cost.roofline import RooflineCost
from membench.planning.rewrite import join_convolution_backward
from membench.planning.stages import first_layer

AT_THE_ENDS = 2
"""Blocks at each end of a shallow copy that stand for themselves."""
PERIOD = 2
"""In which blocks in the middle may differ."""


@dataclass(frozen=True)
class PlaceNumbers:
    """What a part of the network holds and computes: one of its blocks, or what is before the first; the last has what is behind it.

    Attributes:
        kept_bytes: made in the forward pass for the backward pass, of samples; all of it is there at the loss.
        constant_bytes: the same, of weights alone, such as those that autocast has converted.
        kernels_s: of all kernels, without the update.
        waits_s: of kernels for collectives between ranks that share samples.
    """

    kept_bytes: int = 0
    constant_bytes: int = 0
    kernels_s: float = 0.0
    waits_s: float = 0.0

    def is_near(self, other: "PlaceNumbers") -> bool:
        """Return whether another one is the same, but for rounding."""
        bytes_are_same = (self.kept_bytes, self.constant_bytes) == (other.kept_bytes, other.constant_bytes)
        times_s = ((self.kernels_s, other.kernels_s), (self.waits_s, other.waits_s))
        return bytes_are_same and all(isclose(one, two, abs_tol=1e-9) for one, two in times_s)


@dataclass(frozen=True)
class StepNumbers:
    """What each rank holds and computes for a number of samples, however weights are divided.

    Attributes:
        samples: of the step.
        blocks: names of the network's blocks, in order; each but the first begins a place.
        places: of the network, one more than blocks.
        gathered: whole weights in the precision of products, bytes by name.
        reduced: gradients by weight: elements and bytes of each.
        at: the place that uses a weight first, by its name.
        times: what is kept is taken to be of so many times the samples, in proportion.
    """

    samples: int
    blocks: tuple[str, ...]
    places: tuple[PlaceNumbers, ...]
    gathered: Mapping[str, int]
    reduced: Mapping[str, tuple[int, int]]
    at: Mapping[str, int]
    times: float = 1.0

    @classmethod
    def of(cls, graph: TaskGraph, cost: RooflineCost, blocks: Sequence[str]) -> "StepNumbers":
        """Return the numbers of a captured step as plain PyTorch runs it.

        Args:
            blocks: names of the network's blocks, in order.
        """
        assert graph.plain is not None
        plain = join_convolution_backward(cost.annotate(graph.plain), cost)
        firsts = {name: at for name in blocks if (at := first_layer(plain, name)) is not None}
        begins = sorted(firsts.values())
        place_of = {task.index: bisect_right(begins, task.layer) for task in plain.tasks}
        makers = {block: place_of[task.index] for task in plain.tasks for block in task.creates}
        users = {block: place_of[task.index] for task in reversed(plain.tasks) for block in task.reads}
        found = [defaultdict[str, float](float) for _ in range(len(begins) + 1)]
        for name, kept in zip(("kept", "constant"), _kept(plain), strict=True):
            for block in kept:
                found[makers[block]][name] += plain.blocks[block].size_bytes
        for task, kernel_s, wait_s in _times_s(plain, cost):
            found[place_of[task.index]]["kernels"] += kernel_s
            found[place_of[task.index]]["waits"] += wait_s
        weights = [block for block in plain.blocks if block.role is Role.WEIGHT]
        return cls(
            samples=graph.batch_size,
            blocks=tuple(sorted(firsts, key=firsts.__getitem__)),
            places=tuple(
                PlaceNumbers(int(each["kept"]), int(each["constant"]), each["kernels"], each["waits"])
                for each in found
            ),
            gathered={block.name: block.size_bytes for block in weights},
            reduced={
                name: (plain.blocks[value.block].size_bytes // value.dtype.itemsize, value.dtype.itemsize)
                for name, value in plain.gradients
                if value is not None
            },
            at={block.name: users.get(block.index, 0) for block in weights},
        )

    def total(self, name: str) -> float:
        """Return an attribute of `PlaceNumbers`, of all places together."""
        return sum(getattr(place, name) for place in self.places)

    def kept_bytes(self, places: slice = slice(None), under_way: int = 1) -> float:
        """Return what some places keep of micro-batches that are under way."""
        found = self.places[places]
        return sum(each.constant_bytes + under_way * self.times * each.kept_bytes for each in found)

    def is_near(self, other: "StepNumbers") -> bool:
        """Return whether others are the same, but for rounding."""
        same = (self.blocks, self.gathered, self.reduced) == (other.blocks, other.gathered, other.reduced)
        return same and all(one.is_near(two) for one, two in zip(self.places, other.places, strict=True))


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
        first = _kind(listed[0])
        depth = cls(container, len(listed))
        is_alike = names == list(blocks) and all(_kind(block) == first for block in listed[1:])
        return depth if is_alike and depth.blocks > depth.shallow else None

    @property
    def shallow(self) -> int:
        """Blocks of a copy that has the numbers of all."""
        return 2 * AT_THE_ENDS + PERIOD + self.blocks % PERIOD

    def copy(self, module: nn.Module) -> nn.Module:
        """Return a copy of a module with few blocks; the weights are those of the module."""
        shared: dict[int, Any] = {id(each): each for each in chain(module.parameters(), module.buffers())}
        copied = deepcopy(module, shared)
        blocks: Any = copied.get_submodule(self.container)
        copied.set_submodule(self.container, blocks[: self.shallow])
        return copied

    def source(self, block: int) -> int:
        """Return the block of the copy that stands for one of the module."""
        if block < AT_THE_ENDS:
            return block
        if block >= self.blocks - AT_THE_ENDS:
            return self.shallow - (self.blocks - block)
        return AT_THE_ENDS + (block - AT_THE_ENDS) % PERIOD

    def numbers(self, shallow: StepNumbers) -> StepNumbers:
        """Return the numbers of the module from those of its copy."""
        named = list(self._names(shallow.at))
        return StepNumbers(
            shallow.samples,
            tuple(f"{self.container}.{block}" for block in range(self.blocks)),
            (
                shallow.places[0],
                *(shallow.places[self.source(block) + 1] for block in range(self.blocks)),
            ),
            {name: shallow.gathered[like] for name, like, _ in named},
            {name: shallow.reduced[like] for name, like, _ in named if like in shallow.reduced},
            {name: shallow.at[like] + further for name, like, further in named},
        )

    def _names(self, places: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
        """Yield each weight of the module, the copy's weight that stands for it, and by how many places it is further behind.

        Args:
            places: of the copy's weights, by name.
        """
        within = f"{self.container}."
        of_blocks: defaultdict[int, list[str]] = defaultdict(list)
        for name, place in places.items():
            number, _, rest = name.removeprefix(within).partition(".")
            if name.startswith(within) and number.isdecimal():
                of_blocks[int(number)].append(rest)
            else:
                yield name, name, self.blocks - self.shallow if place == self.shallow else 0
        for block in range(self.blocks):
            source = self.source(block)
            for rest in of_blocks[source]:
                yield f"{within}{block}.{rest}", f"{within}{source}.{rest}", block - source


def _kind(block: nn.Module) -> object:
    """Return what tells blocks apart: classes of modules, and layouts of weights and buffers."""
    return (
        [(name, type(each)) for name, each in block.named_modules()],
        [(name, each.shape, each.dtype, each.requires_grad) for name, each in block.named_parameters()],
        [(name, each.shape, each.dtype) for name, each in block.named_buffers()],
    )


def _kept(graph: TaskGraph) -> tuple[list[int], list[int]]:
    """Return the blocks that are there at the loss: those that depend on samples, and the others."""
    of_samples = {block.index for block in graph.blocks if block.role in ARGUMENT_ROLES}
    made: list[int] = []
    for task in graph.tasks:
        if task.phase not in AFTER_THE_LOSS:
            made += task.creates
            if not of_samples.isdisjoint(task.reads):
                of_samples.update(task.writes)
    last_use = graph.last_use
    kept = [block for block in dict.fromkeys(made) if _is_after_the_loss(graph.tasks[last_use[block]])]
    return [block for block in kept if block in of_samples], [
        block for block in kept if block not in of_samples
    ]


def _is_after_the_loss(task: Task) -> bool:
    return task.phase in AFTER_THE_LOSS


def _times_s(graph: TaskGraph, cost: RooflineCost) -> Iterable[tuple[Task, float, float]]:
    """Yield each kernel's task with its seconds, and with what it waits for collectives that need what kernels before it have made.

    Other work of a step delays kernels further, and never makes one earlier.
    """
    position_s, exchanged_s = 0.0, 0.0
    there_s: dict[int, float] = {}
    for task in graph.tasks:
        if task.phase is Phase.UPDATE or task.on_host:
            continue
        ready_s = max((there_s.get(block, 0.0) for block in (*task.reads, *task.writes)), default=0.0)
        if task.collective is not None:
            exchanged_s = max(exchanged_s, ready_s) + cost.task_time_s(task)
            there_s |= dict.fromkeys(task.writes, exchanged_s)
            continue
        kernel_s, wait_s = cost.task_time_s(task), max(0.0, ready_s - position_s)
        position_s += wait_s + kernel_s
        there_s |= dict.fromkeys(task.writes, position_s)
        yield task, kernel_s, wait_s
