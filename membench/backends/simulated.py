"""A virtual device: the same instructions, on virtual clocks.

Streams are in-order queues. Kernels of different streams overlap only in their launch, since one of them fills the
device; each copy engine moves one block at a time. The host issues without delay and stops at a synchronize.
"""

from membench.backends.base import Backend
from membench.cost_model import CostModel
from membench.task_graph import Task, TaskGraph
from membench.timeline import Span, Timeline


class SimulatedBackend(Backend):
    """Plays a schedule on a device that need not exist.

    Args:
        graph: needs no calls.
        cost: seconds of tasks and copies.
        full_duplex: copies in both directions overlap.
    """

    def __init__(self, graph: TaskGraph, cost: CostModel, *, full_duplex: bool) -> None:
        self._blocks = graph.blocks
        self._cost = cost
        self._copy_back_engine = "copy back" if full_duplex else "copy out"
        self._spans: list[tuple[str, float, float]] = []
        self._stream_free_s: dict[str, float] = {}
        self._engine_free_s: dict[str, float] = {}
        self._host_s = 0.0

    def begin(self, *, timed: bool) -> None:
        self._spans.clear()
        self._stream_free_s.clear()
        self._engine_free_s.clear()
        self._host_s = 0.0

    def compute(self, task: Task, stream: str) -> float:
        launch_s = self._cost.launch_time_s(task)
        return self._work(stream, "kernels", launch_s, self._cost.task_time_s(task))

    def offload(self, block: int, stream: str) -> float:
        return self._work(stream, "copy out", 0.0, self._cost.offload_time_s(self._blocks[block].size_bytes))

    def prefetch(self, block: int, stream: str) -> float:
        busy_s = self._cost.prefetch_time_s(self._blocks[block].size_bytes)
        return self._work(stream, self._copy_back_engine, 0.0, busy_s)

    def all_reduce(self, block: int, root: int | None, stream: str) -> float:
        """Take no time: a device of its own has nobody to share with."""
        return self._work(stream, "exchange", 0.0, 0.0)

    def reserve(self, block: int, space_bytes: int) -> None:
        """Memory costs no time, and the schedule knows how much there is."""

    def reuse(self, block: int, dead: int) -> None:
        """As `reserve`."""

    def free(self, block: int) -> None:
        """As `reserve`."""

    def hold(self, size_bytes: int) -> None:
        """As `reserve`."""

    def wait(self, stream: str, event: float) -> None:
        self._stream_free_s[stream] = max(self._stream_free_s.get(stream, 0.0), event)

    def synchronize(self) -> None:
        self._host_s = max(self._host_s, *self._stream_free_s.values(), 0.0)

    def end(self) -> None:
        self.synchronize()

    def timeline(self, issued: tuple[int, ...]) -> Timeline:
        spans = (Span(index, *span) for index, span in zip(issued, self._spans, strict=True))
        return Timeline(tuple(spans), self._host_s)

    def _work(self, stream: str, engine: str, launch_s: float, busy_s: float) -> float:
        start_s = max(self._host_s, self._stream_free_s.get(stream, 0.0))
        busy_from_s = max(start_s + launch_s, self._engine_free_s.get(engine, 0.0))
        end_s = busy_from_s + busy_s
        self._stream_free_s[stream] = self._engine_free_s[engine] = end_s
        self._spans.append((stream, busy_from_s, end_s))
        return end_s
