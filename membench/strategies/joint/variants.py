"""Variants of a graph: forms of layers with the same bits, of which some need less memory, others less time.

- A ReLU's backward pass reads a mask in place of the ReLU's output (`planning.rewrites.rewrite.mask_relu`).
- The index map of max pooling is stored in fewer bits (`planning.rewrites.narrow`).
- A convolution has one of the device's algorithms, each with its workspace and its time.
- Both gradients of a convolution are computed by one call, where the device offers no choice of algorithms for each.

The linear program of `bound` has each of these as a `Saving`; its solution, rounded, is a `Variant`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate

from membench.core.graph.task_graph import RESULT_ROLES, Kind, Phase, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.choices.problem import Problem, large_bytes
from membench.planning.rewrites.narrow import index_maps, narrow_indices
from membench.planning.rewrites.rewrite import join_convolution_backward, mask_relu, maskable_relus
from membench.strategies.joint.gaps import Saving
from membench.strategies.joint.relaxation import Relaxation

THRESHOLDS = (0.5, 0.01)
"""A saving is taken where the linear program takes more than this fraction of it."""


LIMITS = 5
"""Number of limits of all workspaces that are tried."""

_OF_A_TASK = -1
"""In place of a block in the group of a saving."""


@dataclass(frozen=True, slots=True)
class Option:
    """One algorithm of a task; an empty name: the one that it has."""

    name: str
    workspace_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Variant:
    """A form of the graph.

    Attributes:
        is_joined: one call computes both gradients of a convolution.
        masked: layers of ReLUs; `narrowed`: blocks of index maps.
        algorithms: number of the option of each task that has several, by task; a lower number is a faster one.
    """

    is_joined: bool
    masked: frozenset[int] = frozenset()
    narrowed: frozenset[int] = frozenset()
    algorithms: tuple[tuple[int, int], ...] = ()


class Variants:
    """The variants of one graph, each built once.

    Attributes:
        options: for each task with a choice of algorithms, those with no other both as fast and as small, the
            fastest first.
    """

    def __init__(self, graph: TaskGraph, cost: CostModel) -> None:
        self._graph, self._cost = graph, cost
        self.options = {task.index: found for task in graph.tasks if len(found := _options(task, cost)) > 1}
        self._relus = maskable_relus(graph)
        self._maps = index_maps(graph)
        self.problem: Callable[[Variant], Problem] = cache(self._problem)

    @property
    def fastest(self) -> Variant:
        """The variant that computes for the fewest seconds."""
        return Variant(not self.options, algorithms=tuple((task, 0) for task in self.options))

    @property
    def smallest(self) -> Variant:
        """The variant whose tasks need the least memory."""
        least = tuple((task, len(options) - 1) for task, options in self.options.items())
        return Variant(False, frozenset(self._relus), frozenset(self._maps), least)

    @property
    def least(self) -> tuple[Variant, ...]:
        """Variants of which one needs the least memory: masks and narrow forms take memory themselves."""
        plain = replace(self.smallest, masked=frozenset(), narrowed=frozenset())
        return tuple(dict.fromkeys((plain, self.smallest)))

    def rounded(self, relaxed: Relaxation, budget_bytes: int) -> Iterator[tuple[Variant, ...]]:
        """Yield variants, fast and small: with the linear program's savings in two roundings, and the extremes."""
        found: list[tuple[Variant, ...]] = []
        for threshold in THRESHOLDS:
            taken = {saving for saving, fraction in relaxed.saved.items() if fraction > threshold}
            variant = Variant(
                not self.options,
                frozenset(layer for layer, saving in self._mask_savings.items() if saving in taken),
                frozenset(block for block, saving in self._map_savings.items() if saving in taken),
                self._chosen(relaxed, budget_bytes),
            )
            found.append((variant, replace(variant, is_joined=False)))
            found += ((self.limited(variant, size_bytes),) for size_bytes in self._workspaces())
        yield from dict.fromkeys([*found, (self.fastest, replace(self.fastest, is_joined=False), *self.least)])

    def smaller(self, variant: Variant) -> tuple[Variant, Variant]:
        """Return two that need less memory: a convolution's gradients one after the other; in addition all encodings.

        The linear program takes fractions of savings, and nothing of those that only single large blocks need.
        """
        apart = replace(variant, is_joined=False)
        return apart, replace(apart, masked=frozenset(self._relus), narrowed=frozenset(self._maps))

    def _workspaces(self) -> list[int]:
        """Return sizes to try as a limit of all workspaces: halves of the largest, of which each has another effect."""
        sizes = {options[0].workspace_bytes for options in self.options.values()}
        return [max(sizes) >> n for n in range(LIMITS)] if sizes else []

    def limited(self, variant: Variant, workspace_bytes: int) -> Variant:
        """Return the variant with the fastest algorithms whose workspaces are at most as large."""
        return self.upgraded(variant, dict.fromkeys(self.options, workspace_bytes))

    @property
    def encodings(self) -> list[Saving]:
        """Savings that a variant may take or not, those of the most bytes first."""
        found = [*self._mask_savings.values(), *self._map_savings.values()]
        return sorted(found, key=lambda saving: -saving.frees[0][0])

    def toggled(self, variant: Variant, encoding: Saving) -> Variant:
        """Return the variant without an encoding that it has, or with one that it lacks."""
        masked = {layer for layer, saving in self._mask_savings.items() if saving == encoding}
        narrowed = {block for block, saving in self._map_savings.items() if saving == encoding}
        return replace(variant, masked=variant.masked ^ masked, narrowed=variant.narrowed ^ narrowed)

    def upgraded(self, variant: Variant, room_bytes: Mapping[int, int]) -> Variant:
        """Return the variant with the fastest algorithms whose workspaces fit.

        Args:
            room_bytes: for a workspace, by task of the graph.
        """
        return replace(variant, algorithms=self._with_room(room_bytes))

    def _with_room(self, room_bytes: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
        """Return of each task the fastest option whose workspace fits, or the smallest."""
        return tuple(
            (
                task,
                next(
                    (n for n, each in enumerate(options) if each.workspace_bytes <= room_bytes[task]), len(options) - 1
                ),
            )
            for task, options in self.options.items()
        )

    def bounding(self, budget_bytes: int | None) -> Problem:
        """Return the problem whose linear program fits every variant: each task's fastest form that fits alone."""
        return self.problem(Variant(False, algorithms=self._fitting(budget_bytes)))

    def savings(self, budget_bytes: int) -> tuple[Saving, ...]:
        """Return what variants save, for the linear program of `bounding`."""
        of_algorithms = (saving for savings in self._algorithm_savings(budget_bytes).values() for saving in savings)
        return (*self._mask_savings.values(), *self._map_savings.values(), *of_algorithms)

    def _fitting(self, budget_bytes: int | None) -> tuple[tuple[int, int], ...]:
        """Return the fastest option of each task that fits together with its blocks and the results before it."""

        def fits(task: int, option: Option) -> bool:
            return budget_bytes is None or self._needed_bytes[task] + option.workspace_bytes <= budget_bytes

        return tuple(
            (task, next((n for n, option in enumerate(options) if fits(task, option)), len(options) - 1))
            for task, options in self.options.items()
        )

    @cached_property
    def _needed_bytes(self) -> list[int]:
        """The bytes that any schedule holds while each task runs, without its workspace."""
        held = zip(held_bytes(self._graph), self._graph.tasks, strict=True)
        return [size_bytes - task.workspace_bytes for size_bytes, task in held]

    @cached_property
    def spared_s(self) -> float:
        """The most seconds by which a variant computes for less time than `bounding`: one call where that has two."""
        joined = join_convolution_backward(self._graph, self._cost) if not self.options else self._graph
        makers = {block: task for task in self._graph.tasks for block in task.creates}
        calls = {id(task.call) for task in self._graph.tasks}
        spared_s = 0.0
        for task in joined.tasks:
            if id(task.call) not in calls:
                halves = {makers[block].index: makers[block] for block in task.creates}.values()
                spared_s += max(0.0, sum(map(self._task_s, halves)) - self._task_s(task))
        return spared_s - sum(min(0.0, extra_s) for extra_s in self._mask_s.values())

    @cached_property
    def _masked(self) -> TaskGraph:
        return mask_relu(self._graph, self._cost)

    @cached_property
    def _mask_s(self) -> dict[int, float]:
        """Seconds that a mask adds in both passes together, by layer."""
        added = dict.fromkeys(self._relus, 0.0)
        for graph, sign in ((self._masked, 1), (self._graph, -1)):
            for task in graph.tasks:
                if task.layer in added:
                    added[task.layer] += sign * self._task_s(task)
        return added

    @cached_property
    def _mask_savings(self) -> dict[int, Saving]:
        """By layer. The bytes of the mask are not counted: it may be on the host, or in bits as Gist has it."""
        graph, found = self._graph, {}
        tasks = (task for task in self._masked.tasks if task.phase is Phase.BACKWARD)
        created = {task.layer: set(task.creates) for task in tasks if task.kind is Kind.RELU}
        for layer, relu in self._relus.items():
            task, after = graph.tasks[relu.backward], relu.backward + 1
            in_place_bytes = graph.size_bytes(set(task.creates) - created[layer])
            size_bytes = graph.blocks[relu.block].size_bytes
            frees = (size_bytes, self._use_before(relu.block, relu.backward) + 1, after)
            cost_s = max(0.0, self._mask_s[layer])
            found[layer] = Saving((relu.block, relu.backward), (frees, (in_place_bytes, relu.backward, after)), cost_s)
        return found

    @cached_property
    def _map_savings(self) -> dict[int, Saving]:
        """By block. The bytes of the narrow form are not counted: it may be on the host."""
        graph, found = self._graph, {}
        narrowed = narrow_indices(graph, self._cost, self._maps)
        of = {block: block for block in self._maps}  # its forms as well
        cost_s = dict.fromkeys(self._maps, 0.0)
        for task in narrowed.tasks:
            if task.creates and task.creates[0] >= len(graph.blocks):
                of[task.creates[0]] = of[task.reads[0]]
                cost_s[of[task.reads[0]]] += self._task_s(task)
        for block in self._maps:
            first = next(t.index for t in graph.tasks if block in t.reads)
            frees = (graph.blocks[block].size_bytes, self._use_before(block, first) + 1, first)
            found[block] = Saving((block, first), (frees,), cost_s[block])
        return found

    def _algorithm_savings(self, budget_bytes: int) -> dict[int, list[Saving]]:
        """Return by task the savings of each option but the fastest that fits."""
        found = {}
        for task, fastest in self._fitting(budget_bytes):
            first, *others = self.options[task][fastest:]
            found[task] = [
                Saving(
                    (_OF_A_TASK, task),
                    ((first.workspace_bytes - option.workspace_bytes, task, task + 1),),
                    option.time_s - first.time_s,
                    task,
                )
                for option in others
            ]
        return found

    def _chosen(self, relaxed: Relaxation, budget_bytes: int) -> tuple[tuple[int, int], ...]:
        """Return the fastest options with as little workspace as the linear program has for each task."""
        room_bytes = {}
        savings = self._algorithm_savings(budget_bytes)
        for task, fastest in self._fitting(budget_bytes):
            saved = sum(relaxed.saved.get(saving, 0.0) * saving.frees[0][0] for saving in savings[task])
            room_bytes[task] = self.options[task][fastest].workspace_bytes - round(saved)
        return self._with_room(room_bytes)

    def _use_before(self, block: int, task: int) -> int:
        """Return the last task before another that reads or writes a block."""
        before = reversed(self._graph.tasks[:task])
        return next(earlier.index for earlier in before if block in (*earlier.reads, *earlier.writes))

    def _task_s(self, task: Task) -> float:
        return self._cost.launch_time_s(task) + self._cost.task_time_s(task)

    def _problem(self, variant: Variant) -> Problem:
        tasks = list(self._graph.tasks)
        for task, number in variant.algorithms:
            option = self.options[task][number]
            tasks[task] = replace(tasks[task], algorithm=option.name, workspace_bytes=option.workspace_bytes)
        graph = replace(self._graph, tasks=tuple(tasks))
        if variant.is_joined:
            graph = join_convolution_backward(graph, self._cost)
        if variant.narrowed:
            graph = narrow_indices(graph, self._cost, variant.narrowed)
        if variant.masked:
            graph = mask_relu(graph, self._cost, variant.masked)
        return Problem(graph, self._cost, large_bytes(graph))


def held_bytes(graph: TaskGraph) -> list[int]:
    """Return the bytes that any schedule holds during each task: its own, and the results made before."""
    found, results, results_bytes = [], set[int](), 0
    for task, needed_bytes in zip(graph.tasks, graph.needed_bytes, strict=True):
        touched_bytes = graph.size_bytes(results.intersection((*task.reads, *task.writes)))
        found.append(needed_bytes + results_bytes - touched_bytes)
        made = {b for b in task.creates if graph.blocks[b].role in RESULT_ROLES} - results
        results |= made
        results_bytes += graph.size_bytes(made)
    return found


def _options(task: Task, cost: CostModel) -> tuple[Option, ...]:
    """Return the algorithms of a task of which no other is both as fast and as small, the fastest first."""
    found = [Option(task.algorithm, task.workspace_bytes, cost.task_time_s(task))]
    found += (Option(each.name, each.workspace_bytes, each.time_s) for each in cost.algorithms(task))
    found.sort(key=lambda option: (option.time_s, option.workspace_bytes))
    smallest = list(accumulate((option.workspace_bytes for option in found), min))
    return tuple(option for n, option in enumerate(found) if n == 0 or option.workspace_bytes < smallest[n - 1])
