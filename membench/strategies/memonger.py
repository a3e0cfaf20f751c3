"""MXNet with memonger: keep what lies between segments of the network, recompute the rest.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174, 2016, and the planner that its authors
published (dmlc/mxnet-memonger). The forward pass keeps only what crosses from one segment to the next; the backward pass
runs each segment again, convolutions included, right before it needs it. About sqrt(n) segments cost O(sqrt(n)) memory
and one more forward pass (Section 4.3).

- Planning with a budget (Section 4.3, Algorithm 3): a segment ends where its maps exceed B bytes. From the plan with
  B = 0, which keeps x bytes in segments of at most y, follows the guess B = sqrt(x y). Of plans around it, from B / sqrt(2)
  to sqrt(2) B, the one with the least peak is taken.
- In the paper the user marks where segments may end. Here they may wherever no earlier map is written in place later;
  of such places in the second half of its bytes, a segment takes the one that the fewest bytes cross.
- The last segment is not recomputed: its backward pass follows at once.

Not SuperNeurons, which recomputes cheap layers only; nothing is copied to the host. Dropout's masks and the running
statistics of batch norm stay as eager PyTorch has them: see `planning.recompute`.
"""

from collections.abc import Iterator
from math import inf, sqrt

from membench.cost_model import CostModel
from membench.planning.builder import ScheduleBuilder
from membench.planning.recompute import Segment, recompute
from membench.schedule import Schedule
from membench.strategies.base import Strategy
from membench.strategies.on_demand import compute_on_demand
from membench.task_graph import Phase, TaskGraph

TRIALS = 6
"""Plans around the guess, as many as the published planner tries."""


class Memonger(Strategy):
    name = "memonger"

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        forward = _ForwardPass(graph)
        plans = [
            cost.annotate(recompute(graph, forward.segments(size_bytes)))
            for size_bytes in forward.segment_sizes_bytes()
        ]
        best = min(plans, key=lambda plan: self._on_demand(plan, None).peak_bytes)
        return self._on_demand(best, budget_bytes)

    def _on_demand(self, graph: TaskGraph, budget_bytes: int | None) -> Schedule:
        builder = ScheduleBuilder(self.name, graph, budget_bytes=budget_bytes)
        compute_on_demand(builder)
        return builder.finish()


class _ForwardPass:
    """The forward pass and the loss, and where it can be cut into segments."""

    def __init__(self, graph: TaskGraph) -> None:
        self._blocks = graph.blocks
        self._tasks = [task for task in graph.tasks if task.phase is not Phase.BACKWARD]
        self._saved = frozenset(b for layer in graph.backward_layers for b in layer.reads)
        self._created = {b: position for position, task in enumerate(self._tasks) for b in task.creates}
        self._last_use = {b: p for p, task in enumerate(self._tasks) for b in (*task.reads, *task.writes)}
        self._may_end = self._find_ends()

    def _find_ends(self) -> list[bool]:
        """Return for each task whether no earlier block is written in place after it."""
        last_write = {b: p for p, task in enumerate(self._tasks) for b in task.writes if b in self._created}
        ends, latest = [], 0
        for position, task in enumerate(self._tasks):
            latest = max([latest, *(last_write[block] for block in task.creates)])
            ends.append(latest <= position)
        return ends

    def segment_sizes_bytes(self) -> Iterator[float]:
        """Yield the sizes B to try."""
        smallest = self._split(0)
        kept_bytes = sum(self._crossing_bytes(start, end) for start, end in smallest)
        largest_bytes = max((self._map_bytes(start, end) for start, end in smallest), default=0)
        guess_bytes = sqrt(kept_bytes * largest_bytes)
        for trial in range(TRIALS):
            yield guess_bytes * 2 ** (trial / (TRIALS - 1) - 0.5)

    def segments(self, size_bytes: float) -> list[Segment]:
        """Return what each segment but the last drops: all that it makes and that no later task of the pass reads."""
        return [
            Segment(
                frozenset(b for t in self._tasks[start:end] for b in t.creates if self._last_use[b] < end)
            )
            for start, end in self._split(size_bytes)[:-1]
        ]

    def _split(self, size_bytes: float) -> list[tuple[int, int]]:
        """Return where each segment starts and ends."""
        segments, start = [], 0
        while start < len(self._tasks):
            end = self._end_of_segment(start, size_bytes)
            segments.append((start, end))
            start = end
        return segments

    def _end_of_segment(self, start: int, size_bytes: float) -> int:
        """Return the narrowest place in the second half of the segment's bytes; without one, the first after them."""
        best, narrowest_bytes = None, inf
        map_bytes = crossing_bytes = 0
        for position in range(start, len(self._tasks)):
            map_bytes += self._map_bytes(position, position + 1)
            if best is not None and map_bytes > size_bytes:
                return best
            crossing_bytes += self._change_of_width_bytes(position, start)
            if self._may_end[position] and map_bytes > size_bytes / 2 and crossing_bytes <= narrowest_bytes:
                best, narrowest_bytes = position + 1, crossing_bytes
        return len(self._tasks)

    def _change_of_width_bytes(self, position: int, start: int) -> int:
        """Return by how much a task changes what crosses to later tasks, of what was made from `start` on."""
        task = self._tasks[position]
        made = sum(self._size_bytes(block) for block in task.creates)
        last_used = (
            self._size_bytes(block)
            for block in {*task.reads, *task.writes}
            if self._last_use[block] == position and self._created.get(block, -1) >= start
        )
        return made - sum(last_used)

    def _map_bytes(self, start: int, end: int) -> int:
        """Return the bytes that the tasks make and the backward pass reads."""
        made = (block for task in self._tasks[start:end] for block in task.creates)
        return sum(self._size_bytes(block) for block in made if block in self._saved)

    def _crossing_bytes(self, start: int, end: int) -> int:
        made = (block for task in self._tasks[start:end] for block in task.creates)
        return sum(self._size_bytes(block) for block in made if self._last_use[block] >= end)

    def _size_bytes(self, block: int) -> int:
        return self._blocks[block].size_bytes
