"""MXNet with memonger: keep what crosses from one segment of the network to the next, recompute the rest.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174, 2016, and the planner that its authors
published (dmlc/mxnet-memonger, ``memonger.py``). The forward pass keeps only what crosses from one segment to the next;
the backward pass runs each segment again, convolutions included, right before it needs it. About sqrt(n) segments cost
O(sqrt(n)) memory and one more forward pass (Section 4.3).

- Planning with a budget (Section 4.3, Algorithm 3): a segment ends at the first place where its activations exceed B
  bytes.
- The search for B is the published planner's: from B = 0 twice B = sqrt(x y / 2), where the previous plan keeps x bytes
  between segments of at most y; then a grid between the smallest y and sqrt(2) times the next such guess. Of these
  plans the one with the least peak is taken. (The planner counts whole MB; here bytes, so that small networks are cut
  as well.) The search does not compare them with no plan at all: where activations are few, its best may need more
  memory than none (CIFAR10-quick).
- A segment may end where only one of its activations is read later, and no earlier activation is written in place
  later. In the paper and in its planner the user marks such places; the published example of a convolutional network
  marks the inputs of residual units. `marks_units` leaves only these: behind poolings, sums and the ReLU on a sum, and
  concatenations.
- The last segment is recomputed as well (Algorithm 1; the planner marks every operator except those that it keeps).

Not SuperNeurons, which recomputes cheap layers only; nothing is copied to the host. Dropout's masks and the running
statistics of batch norm stay as eager PyTorch has them: see `planning.rewrites.recompute`.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from math import inf, sqrt

from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import AFTER_THE_LOSS, RESULT_ROLES, Block, Kind, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import FixedPool, Pool, allocated
from membench.planning.rewrites.recompute import Repeatable, Segment, recompute, recomputing_order
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand, on_demand_peak_bytes

GUESSES = 3
"""Number of sizes B that follow from the previous plan, the first one (zero) included."""

TRIALS = 6
"""Number of sizes B on the grid."""

MATCH_RANGE = 16
"""Largest ratio between the sizes of a block and of the free storage that it takes (``NNVM_EXEC_MATCH_RANGE``)."""

UNIT_ENDS = frozenset({Kind.POOLING, Kind.ADD, Kind.CONCATENATE})
"""Kinds of layers that end units of networks, as does the ReLU on a sum."""

Cut = tuple[int, int]
"""Start and end of a segment, in positions of tasks."""


class Memonger(Strategy):
    """Memonger: recompute the forward pass in about sqrt(n) segments (Chen et al. 2016, Section 4.3).

    Args:
        shares_storages: activations lie in storages that MXNet plans before the run, instead of memory on demand.
        marks_units: segments end only where a published network's units do, instead of at any narrow place.
    """

    name = "memonger"
    plans_for_budgets = False

    def __init__(self, shares_storages: bool = False, marks_units: bool = False) -> None:
        self._shares_storages = shares_storages
        self._marks_units = marks_units

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        forward, repeatable = _ForwardPass(graph, marks_units=self._marks_units), Repeatable(graph, cost)
        different = dict.fromkeys(tuple(forward.split(size)) for size in forward.segment_sizes_bytes())
        choices = map(forward.segments, different)
        best = min(choices, key=lambda segments: self._peak_bytes(repeatable, segments))
        graph = recompute(repeatable, best)
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes, pool=self._storages())
        compute_on_demand(builder, graph.tasks)
        return builder.finish()

    def _peak_bytes(self, repeatable: Repeatable, segments: Sequence[Segment]) -> int:
        """Return the peak of a choice of segments, without what all choices hold."""
        pool = self._storages() or FixedPool(0)
        return on_demand_peak_bytes(recomputing_order(repeatable, segments), pool)

    def _storages(self) -> Pool | None:
        return StoragePool() if self._shares_storages else None


class _ForwardPass:
    """The forward pass and the loss, and the places at which it can be cut into segments."""

    def __init__(self, graph: TaskGraph, *, marks_units: bool) -> None:
        self._blocks = graph.blocks
        self._tasks = [task for task in graph.tasks if task.phase not in AFTER_THE_LOSS]
        self._last_use = {b: p for p, task in enumerate(self._tasks) for b in (*task.reads, *task.writes)}
        self._may_end = self._find_ends()
        if marks_units:
            self._may_end = [may and ends for may, ends in zip(self._may_end, self._unit_ends(), strict=True)]

    def _unit_ends(self) -> list[bool]:
        """Return for each task whether it ends a unit of a network."""
        sums = {block for task in self._tasks if task.kind is Kind.ADD for block in task.creates}
        return [
            task.kind in UNIT_ENDS or (task.kind is Kind.RELU and not sums.isdisjoint(task.reads))
            for task in self._tasks
        ]

    def _find_ends(self) -> list[bool]:
        """Return for each task whether no earlier block is written in place after it."""
        created = {block for task in self._tasks for block in task.creates}
        last_write = {b: p for p, task in enumerate(self._tasks) for b in task.writes if b in created}
        ends, latest = [], 0
        for position, task in enumerate(self._tasks):
            latest = max([latest, *(last_write[block] for block in task.creates)])
            ends.append(latest <= position)
        return ends

    def segment_sizes_bytes(self) -> Iterator[float]:
        """Yield the sizes B to try, in the published planner's notation: x = between_bytes, y = largest_bytes."""
        guess_bytes = 0.0
        least_largest_bytes = inf
        for _ in range(GUESSES):
            yield guess_bytes
            cuts = self.split(guess_bytes)[:-1]
            between_bytes = sum(self._made_bytes(cut, last_use_from=cut[1]) for cut in cuts)
            largest_bytes = max((self._made_bytes(cut) for cut in cuts), default=0)
            least_largest_bytes = min(least_largest_bytes, largest_bytes)
            guess_bytes = sqrt(between_bytes * largest_bytes / 2)
        grid_start_bytes, grid_end_bytes = least_largest_bytes, sqrt(2) * guess_bytes
        step_bytes = (grid_end_bytes - grid_start_bytes) / TRIALS
        if step_bytes > 0:
            for step in range(1, TRIALS + 1):
                yield grid_start_bytes + step * step_bytes

    def segments(self, cuts: tuple[Cut, ...]) -> list[Segment]:
        """Return the segments with what each drops: blocks that it makes and that no later task of the pass uses."""
        return [
            Segment(frozenset(b for t in self._tasks[start:end] for b in t.creates if self._last_use[b] < end))
            for start, end in cuts
        ]

    def split(self, size_bytes: float) -> list[Cut]:
        """Return the cuts: each segment ends at the first place at which it has made more than that many bytes."""
        cuts, start, made_bytes = [], 0, 0
        crossing: set[int] = set()  # of what the segment has made so far
        for position, task in enumerate(self._tasks):
            made_bytes += sum(self._blocks[block].size_bytes for block in task.creates)
            crossing.update(task.creates)
            crossing -= {b for b in (*task.reads, *task.writes) if self._last_use[b] == position}
            if made_bytes > size_bytes and len(crossing) <= 1 and self._may_end[position]:
                cuts.append((start, position + 1))
                start, made_bytes = position + 1, 0
                crossing.clear()
        if start < len(self._tasks):
            cuts.append((start, len(self._tasks)))
        return cuts

    def _made_bytes(self, cut: Cut, *, last_use_from: int = 0) -> int:
        """Return the bytes of the blocks that a segment makes and that are used at or after a position."""
        start, end = cut
        made = (block for task in self._tasks[start:end] for block in task.creates)
        return sum(self._blocks[block].size_bytes for block in made if self._last_use[block] >= last_use_from)


class StoragePool(Pool):
    """Grows on demand and never shrinks; a storage is handed out whole, and never merged or split.

    The plan of MXNet's executor (dmlc/nnvm, ``src/pass/plan_memory.cc``): a block takes the smallest free storage that
    is large enough, up to `MATCH_RANGE` times its size. Without one, it takes the largest that is too small, down to
    that share of its size, which the plan then enlarges to the block's size. All is allocated before the run: the final
    extent counts from the beginning, and the peak is the same. Each storage is an allocation of its own, rounded up as
    such.
    """

    held_bytes = 0

    def __init__(self) -> None:
        self._size_bytes: list[int] = []  # of storages
        self._free: list[tuple[int, int]] = []  # (size, storage), sorted

    def serves(self, block: Block) -> bool:
        return block.role not in RESULT_ROLES

    def allocate(self, size_bytes: int) -> int:
        """Take a storage and return its number."""
        if not size_bytes:
            return len(self._size_bytes)
        position = bisect_left(self._free, (size_bytes, -1))
        if position == len(self._free) or self._free[position][0] > size_bytes * MATCH_RANGE:
            position -= 1  # the largest that is too small
        if position < 0 or self._free[position][0] < size_bytes // MATCH_RANGE:
            self._size_bytes.append(size_bytes)
            self.held_bytes += allocated(size_bytes)
            return len(self._size_bytes) - 1
        _, storage = self._free.pop(position)
        enlarged_bytes = max(size_bytes, self._size_bytes[storage])
        self.held_bytes += allocated(enlarged_bytes) - allocated(self._size_bytes[storage])
        self._size_bytes[storage] = enlarged_bytes
        return storage

    def free(self, address: int, size_bytes: int) -> None:
        if not size_bytes:
            return
        insort(self._free, (self._size_bytes[address], address))
