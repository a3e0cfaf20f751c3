"""What a micro-batch's step holds and computes, block by block, and a deep network's numbers from a shallow copy's.

The numbers of a copy with few blocks (`membench.advice.cluster.depth`) are those of the network, with the ones in the
middle repeated. Where the whole network's graph is made, its numbers are compared.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isclose

from membench.advice.cluster.depth import Depth
from membench.core.graph.task_graph import AFTER_THE_LOSS, ARGUMENT_ROLES, Kind, Phase, Role, Task, TaskGraph
from membench.core.units import GIB
from membench.cost.roofline import RooflineCost
from membench.planning.parallel.stages import first_layer
from membench.planning.rewrites.rewrite import join_convolution_backward

_SUM = Task(0, "sum of gradients", Kind.OTHER, Phase.BACKWARD, 0, (), (), (), moved_bytes=GIB)
"""A large one: a smaller one takes as long for each byte, or longer."""


@dataclass(frozen=True)
class PassNumbers:
    """The time of a place in one pass, waits for collectives between ranks that share samples included.

    Attributes:
        total_s: seconds of all its kernels.
        head_s: seconds of the kernels before the first one that needs what the place before it in that pass has made.
        tail_s: seconds of the kernels behind the first one that makes what the next place needs.
    """

    total_s: float = 0.0
    head_s: float = 0.0
    tail_s: float = 0.0


@dataclass(frozen=True)
class PlaceNumbers:
    """What a place holds and computes: a block, what precedes the first, or the last with what is behind it.

    Attributes:
        kept_bytes: made in the forward pass for the backward pass, of samples; all of it is there at the loss.
        constant_bytes: the same, of weights alone, such as those that autocast has converted.
        kernels_s: seconds of all kernels, without the update.
        waits_s: seconds that kernels wait for collectives between ranks that share samples.
        forward, backward: numbers of each pass; what runs again is a part of the backward pass.
        gradient_elements, gradient_bytes: sizes of the blocks of weights' gradients that are final here.
    """

    kept_bytes: int = 0
    constant_bytes: int = 0
    kernels_s: float = 0.0
    waits_s: float = 0.0
    forward: PassNumbers = PassNumbers()
    backward: PassNumbers = PassNumbers()
    gradient_elements: int = 0
    gradient_bytes: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """What is counted, not timed."""
        return self.kept_bytes, self.constant_bytes, self.gradient_elements, self.gradient_bytes

    def is_near(self, other: "PlaceNumbers") -> bool:
        """Return whether another one is the same, but for rounding."""
        times_s = ((self.kernels_s, other.kernels_s), (self.waits_s, other.waits_s))
        return self.sizes == other.sizes and all(isclose(one, two, abs_tol=1e-9) for one, two in times_s)


@dataclass(frozen=True)
class StepNumbers:
    """What each rank holds and computes for a number of samples, however weights are divided.

    Attributes:
        samples: samples in the step.
        blocks: names of the network's blocks, in order; each but the first begins a place.
        places: the network's places, one more than blocks.
        gathered: whole weights in the precision of products, bytes by name.
        reduced: gradients by weight: elements and bytes of each.
        at: the place that uses a weight first, by its name.
        byte_s: seconds in which a kernel that adds gradients moves a byte, at best.
        times: what is kept is taken to be of so many times the samples, in proportion.
    """

    samples: int
    blocks: tuple[str, ...]
    places: tuple[PlaceNumbers, ...]
    gathered: Mapping[str, int]
    reduced: Mapping[str, tuple[int, int]]
    at: Mapping[str, int]
    byte_s: float
    times: float = 1.0

    @classmethod
    def of(cls, graph: TaskGraph, cost: RooflineCost, blocks: Sequence[str]) -> "StepNumbers":
        """Return the numbers of a captured step.

        Args:
            graph: as plain PyTorch runs it.
            blocks: names of the network's blocks, in order.
        """
        plain = join_convolution_backward(cost.annotate(graph), cost)
        firsts = {name: at for name in blocks if (at := first_layer(plain, name)) is not None}
        begins = sorted(firsts.values())
        place_of = {task.index: bisect_right(begins, task.layer) for task in plain.tasks}
        users = {block: place_of[task.index] for task in reversed(plain.tasks) for block in task.reads}
        weights = [block for block in plain.blocks if block.role is Role.WEIGHT]
        return cls(
            samples=graph.batch_size,
            blocks=tuple(sorted(firsts, key=firsts.__getitem__)),
            places=tuple(_places(plain, cost, place_of, len(begins) + 1)),
            gathered={block.name: block.size_bytes for block in weights},
            reduced={
                name: (plain.blocks[value.block].size_bytes // value.dtype.itemsize, value.dtype.itemsize)
                for name, value in plain.gradients
                if value is not None
            },
            at={block.name: users.get(block.index, 0) for block in weights},
            byte_s=cost.task_time_s(_SUM) / _SUM.moved_bytes,
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


def numbers_of_depth(depth: Depth, shallow: StepNumbers) -> StepNumbers:
    """Return the numbers of a module from those of its copy with few blocks."""
    named = list(_names(depth, shallow.at))
    sources = [depth.source(block) for block in range(depth.blocks)]
    return StepNumbers(
        shallow.samples,
        tuple(f"{depth.container}.{block}" for block in range(depth.blocks)),
        (shallow.places[0], *(shallow.places[source + 1] for source in sources)),
        {name: shallow.gathered[like] for name, like, _ in named},
        {name: shallow.reduced[like] for name, like, _ in named if like in shallow.reduced},
        {name: shallow.at[like] + further for name, like, further in named},
        shallow.byte_s,
    )


def _names(depth: Depth, places: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """Yield each weight of a module, the copy's weight that stands for it, and by how many places it is further behind.

    Args:
        places: place of each of the copy's weights, by name.
    """
    within = f"{depth.container}."
    of_blocks: defaultdict[int, list[str]] = defaultdict(list)
    for name, place in places.items():
        number, _, rest = name.removeprefix(within).partition(".")
        if name.startswith(within) and number.isdecimal():
            of_blocks[int(number)].append(rest)
        else:
            yield name, name, depth.blocks - depth.shallow if place == depth.shallow else 0
    for block in range(depth.blocks):
        source = depth.source(block)
        for rest in of_blocks[source]:
            yield f"{within}{block}.{rest}", f"{within}{source}.{rest}", block - source


def _places(graph: TaskGraph, cost: RooflineCost, place_of: Mapping[int, int], number: int) -> Iterator[PlaceNumbers]:
    """Yield the numbers of each place of a graph.

    Args:
        place_of: the place of a task, by its index.
        number: how many places there are.
    """
    made_at = {block: place_of[task.index] for task in graph.tasks for block in task.creates}
    kept, constant, elements, gradients = (Counter[int]() for _ in range(4))
    for sizes_bytes, blocks in zip((kept, constant), _kept(graph), strict=True):
        for block in blocks:
            sizes_bytes[made_at[block]] += graph.blocks[block].size_bytes
    for block, number_of_elements in _gradients(graph):
        place = place_of[graph.last_use[block]]
        elements[place] += number_of_elements
        gradients[place] += graph.blocks[block].size_bytes
    kernels_s, waits_s = defaultdict[int, float](float), defaultdict[int, float](float)
    before: list[tuple[Task, float]] = []
    behind: list[tuple[Task, float]] = []
    for task, kernel_s, wait_s in _times_s(graph, cost):
        kernels_s[place_of[task.index]] += kernel_s
        waits_s[place_of[task.index]] += wait_s
        (behind if _is_after_the_loss(task) else before).append((task, kernel_s + wait_s))
    forward, backward = _passes(before, place_of, 1), _passes(behind, place_of, -1)
    for place in range(number):
        yield PlaceNumbers(
            kept[place],
            constant[place],
            kernels_s[place],
            waits_s[place],
            forward.get(place, PassNumbers()),
            backward.get(place, PassNumbers()),
            elements[place],
            gradients[place],
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
    return [block for block in kept if block in of_samples], [block for block in kept if block not in of_samples]


def _gradients(graph: TaskGraph) -> Iterator[tuple[int, int]]:
    """Yield each block in which the step makes gradients, several perhaps, with its elements.

    Those that a step adds to are the caller's: its kernels add them up already.
    """
    made = {block for task in graph.tasks for block in task.creates}
    itemsizes = {value.block: value.dtype.itemsize for _, value in graph.gradients if value is not None}
    for block in itemsizes.keys() & made:
        yield block, graph.blocks[block].size_bytes // itemsizes[block]


def _is_after_the_loss(task: Task) -> bool:
    return task.phase in AFTER_THE_LOSS


def _times_s(graph: TaskGraph, cost: RooflineCost) -> Iterable[tuple[Task, float, float]]:
    """Yield each kernel's task with its seconds, and its wait for collectives on what earlier kernels have made.

    Other work of a step delays kernels further, and never makes one earlier.
    """
    position_s = 0.0
    exchanged_s: defaultdict[str, float] = defaultdict(float)  # by stream
    there_s: dict[int, float] = {}
    for task in graph.tasks:
        if task.phase is Phase.UPDATE or task.on_host:
            continue
        ready_s = max((there_s.get(block, 0.0) for block in (*task.reads, *task.writes)), default=0.0)
        if task.collective is not None:
            stream = task.collective.stream
            exchanged_s[stream] = max(exchanged_s[stream], ready_s) + cost.task_time_s(task)
            there_s |= dict.fromkeys(task.writes, exchanged_s[stream])
            continue
        kernel_s, wait_s = cost.task_time_s(task), max(0.0, ready_s - position_s)
        position_s += wait_s + kernel_s
        there_s |= dict.fromkeys(task.writes, position_s)
        yield task, kernel_s, wait_s


def _passes(times_s: Sequence[tuple[Task, float]], place_of: Mapping[int, int], step: int) -> dict[int, PassNumbers]:
    """Return the numbers of places in one pass.

    Args:
        times_s: the tasks of the pass in order, and their seconds.
        step: from a place to the next one.
    """
    made_at = {block: place_of[task.index] for task, _ in times_s for block in task.creates}
    needed_at: defaultdict[int, set[int]] = defaultdict(set)
    for task, _ in times_s:
        for block in task.reads:
            needed_at[block].add(place_of[task.index])
    total_s, head_s, made_s = defaultdict[int, float](float), dict[int, float](), dict[int, float]()
    for task, time_s in times_s:
        place = place_of[task.index]
        if any(made_at.get(block) == place - step for block in task.reads):
            head_s.setdefault(place, total_s[place])
        total_s[place] += time_s
        if any(place + step in needed_at[block] for block in task.creates):
            made_s.setdefault(place, total_s[place])
    return {
        place: PassNumbers(whole_s, head_s.get(place, whole_s), whole_s - made_s.get(place, 0.0))
        for place, whole_s in total_s.items()
    }
