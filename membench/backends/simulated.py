"""Simulated devices: the same instructions, on virtual clocks.

Streams are in-order queues. Kernels of different streams share the device, and so do encodings and decodings: each
takes what earlier ones leave, up to the share that the cost model gives. Of kernels that fill the device only the
launches overlap. Each copy engine moves one block at a time, in the order in which blocks are ready. A disk reads and
writes at the same time, one block each. Tasks of the host run one after another and overlap with everything else, and
so do the collectives of each axis of a mesh, which take a share of the device's processors from kernels. A message from
another rank arrives when that rank has sent it, whether or not it is asked for already (assumed). Where copies take
cores from kernels, as on a CPU, each one makes the next kernel longer, unless kernels wait meanwhile. The host issues
one instruction after another, each for the time that the cost model gives, and waits at a synchronize, and between
passes where the program does so.

Of a cluster one device is simulated, because all do the same at the same time: a device that shares its link has its
share of the rate throughout, which is exact if all devices copy at the same times. Gains of real devices from falling
out of step, and losses from unequal ones, are not modelled.
"""

from bisect import bisect_left, insort
from collections.abc import Callable

from membench.backends.base import Backend
from membench.backends.mailbox import Mailbox
from membench.backends.shared_device import SharedDevice
from membench.backends.simulated_exchange import COPY_BACK, COPY_OUT, exchange_stages
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.graph.schedule import COMPUTE_STREAM, EXCHANGE_STREAM, Schedule
from membench.core.graph.task_graph import AFTER_THE_LOSS, Task, TaskGraph
from membench.core.graph.timeline import Span, Timeline
from membench.core.hardware.cluster import SINGLE_DEVICE, Cluster
from membench.core.hardware.cost_model import CostModel

_PROCESSOR = "processor"
_DISK_READS, _DISK_WRITES = "disk reads", "disk writes"


class SimulatedBackend(Backend):
    """Simulates a schedule on a device that need not exist.

    Args:
        graph: may be without calls.
        cost: seconds of tasks, and of copies while all devices of the cluster copy.
        cluster: the devices that exchange gradients.
        mailbox: mailbox of the ranks that are simulated together; None: messages of others are there at once.
    """

    def __init__(
        self, graph: TaskGraph, cost: CostModel, cluster: Cluster = SINGLE_DEVICE, mailbox: Mailbox | None = None
    ) -> None:
        self._blocks = graph.blocks
        self._cost = cost
        self._cluster = cluster
        self._mailbox = mailbox
        self._spans: list[tuple[str, float, float]] = []
        self._stream_free_s: dict[str, float] = {}
        self._stage_free_s: dict[int, float] = {}  # of the exchange
        self._engines: dict[str, _Engine] = {}
        self._device = SharedDevice()
        self._host_s = 0.0
        self._host_waits_s = 0.0
        self._is_backward = False  # the last task's pass
        self._kernels_end_s = 0.0
        self._delay_s = 0.0  # by copies, of the next kernel

    def prepare(self, schedule: Schedule) -> None:
        """Do nothing: nothing is allocated."""

    def begin(self, *, timed: bool) -> None:
        self._spans.clear()
        self._stream_free_s.clear()
        self._stage_free_s.clear()
        self._engines.clear()
        self._device = SharedDevice()
        self._host_s = self._host_waits_s = self._kernels_end_s = self._delay_s = 0.0
        self._is_backward = False

    def compute(self, task: Task, stream: str) -> float:
        if task.on_host:
            return self._work(stream, _PROCESSOR, 0.0, self._cost.host_task_time_s(task))
        if self._cost.waits_between_passes:
            self._enter_pass(task)
        self._host_s += self._cost.task_issue_time_s(task)
        if task.collective is not None:
            end_s = self._take_part(task.collective, stream, self._cost.task_time_s(task))
            if task.collective.message and self._cost.waits_between_passes:
                self.synchronize()
            return end_s
        could_start_s = max(self._stream_free_s.get(stream, 0.0), self._kernels_end_s)
        self._host_waits_s += max(0.0, self._host_s - could_start_s)
        launch_s = self._cost.launch_time_s(task)
        idle_s = max(0.0, self._ready_s(stream) + launch_s - self._kernels_end_s)
        delay_s, self._delay_s = max(0.0, self._delay_s - idle_s), 0.0
        end_s = self._run(stream, launch_s, self._cost.task_time_s(task) + delay_s, self._cost.task_share(task))
        self._kernels_end_s = max(self._kernels_end_s, end_s)
        return end_s

    def _enter_pass(self, task: Task) -> None:
        """Let the host wait where a task begins a forward or a backward pass; recomputation belongs to the latter."""
        is_backward = task.phase in AFTER_THE_LOSS or task.is_recomputed
        if is_backward != self._is_backward:
            self.synchronize()
        self._is_backward = is_backward

    def _take_part(self, collective: Collective, stream: str, time_s: float) -> float:
        """Take part in a collective, which runs for `time_s` once its data is there, and return when it ends."""
        if collective.kind is CollectiveKind.RECEIVE:
            arrived_s = self._mailbox.take(collective.message) if self._mailbox else 0.0
            return self._work(stream, stream, 0.0, max(0.0, arrived_s - self._ready_s(stream)))
        self._delay_s += self._cost.collective_share * time_s
        end_s = self._work(stream, stream, 0.0, time_s)
        if collective.kind is CollectiveKind.SEND and self._mailbox:
            self._mailbox.post(collective.message, end_s)
        return end_s

    def offload(self, block: int, stream: str) -> float:
        return self._copy(stream, COPY_OUT, block, self._cost.offload_time_s)

    def prefetch(self, block: int, stream: str) -> float:
        self._follow_compute(stream)
        return self._copy(stream, COPY_BACK, block, self._cost.prefetch_time_s)

    def load(self, block: int, stream: str) -> float:
        time_s = self._cost.disk_read_time_s(self._blocks[block].size_bytes)
        return self._work(stream, _DISK_READS, 0.0, time_s)

    def store(self, block: int, stream: str) -> float:
        time_s = self._cost.disk_write_time_s(self._blocks[block].size_bytes)
        return self._work(stream, _DISK_WRITES, 0.0, time_s)

    def drop(self, block: int, stream: str) -> float:
        """Take no time; what it has waited for delays the stream's next work."""
        return self._work(stream, f"drops of {stream}", 0.0, 0.0)

    def all_reduce(self, block: int, root: int | None, stream: str) -> float:
        """Pass a block through the exchange's stages; each is a queue, so that blocks are pipelined."""
        size_bytes = self._blocks[block].size_bytes
        start_s = end_s = self._ready_s(stream)
        stages = exchange_stages(self._cluster, self._cost, size_bytes, root)
        for stage, (engine, busy_s) in enumerate(stages):
            from_s = self._serve(engine, max(end_s, self._stage_free_s.get(stage, 0.0)), busy_s)
            start_s = start_s if stage else from_s
            end_s = self._stage_free_s[stage] = from_s + busy_s
        self._stream_free_s[stream] = self._stage_free_s.get(0, start_s)
        self._spans.append((stream, start_s, end_s))
        return end_s

    def encode(self, block: int, encoded: int, codec: ActivationCodec, stream: str) -> float:
        self._follow_compute(stream)
        sizes_bytes = (self._blocks[block].size_bytes, self._blocks[encoded].size_bytes)
        return self._run(stream, 0.0, self._cost.codec_time_s(codec, *sizes_bytes), self._cost.codec_share(codec))

    decode = encode

    def reserve(self, block: int, space_bytes: int) -> None:
        """Do nothing: memory instructions take no time, and the schedule contains the peak."""

    def reuse(self, block: int, dead: int) -> None:
        """Do nothing; see `reserve`."""

    def free(self, block: int) -> None:
        """Do nothing; see `reserve`."""

    def hold(self, size_bytes: int) -> None:
        """Do nothing; see `reserve`."""

    def wait(self, stream: str, event: float) -> None:
        self._stream_free_s[stream] = max(self._stream_free_s.get(stream, 0.0), event)

    def synchronize(self) -> None:
        local_s = [free_s for stream, free_s in self._stream_free_s.items() if stream != EXCHANGE_STREAM]
        self._host_s = max(self._host_s, *local_s, 0.0)

    def end(self) -> None:
        self._host_s = max(self._host_s, *self._stream_free_s.values(), *self._stage_free_s.values(), 0.0)

    def timeline(self, issued: tuple[int, ...]) -> Timeline:
        spans = (Span(index, *span) for index, span in zip(issued, self._spans, strict=True))
        return Timeline(tuple(spans), self._host_s, self._host_waits_s)

    def _copy(self, stream: str, engine: str, block: int, time_s: Callable[[int], float]) -> float:
        size_bytes = self._blocks[block].size_bytes
        self._host_s += self._cost.copy_issue_time_s
        self._delay_s += self._cost.copy_delay_s(size_bytes)
        return self._work(stream, engine, 0.0, time_s(size_bytes))

    def _run(self, stream: str, launch_s: float, busy_s: float, share: float) -> float:
        """Run a kernel on the device."""
        start_s, end_s = self._device.run(self._ready_s(stream) + launch_s, busy_s, share)
        self._stream_free_s[stream] = end_s
        self._spans.append((stream, start_s, end_s))
        return end_s

    def _work(self, stream: str, engine: str, launch_s: float, busy_s: float) -> float:
        start_s = self._serve(engine, self._ready_s(stream) + launch_s, busy_s)
        end_s = self._stream_free_s[stream] = start_s + busy_s
        self._spans.append((stream, start_s, end_s))
        return end_s

    def _follow_compute(self, stream: str) -> None:
        """Let a stream wait for the compute stream's position and what that waits for, when its memory is free."""
        self.wait(stream, self._stream_free_s.get(COMPUTE_STREAM, 0.0))

    def _ready_s(self, stream: str) -> float:
        return max(self._host_s, self._stream_free_s.get(stream, 0.0))

    def _serve(self, engine: str, ready_s: float, busy_s: float) -> float:
        """Return when an engine starts a job that is ready at `ready_s`."""
        if engine == COPY_BACK and not self._cost.full_duplex:
            engine = COPY_OUT
        return self._engines.setdefault(engine, _Engine()).serve(ready_s, busy_s)


class _Engine:
    """Serves one job at a time.

    A job that is ready while the engine waits for an earlier one goes first if it ends before that one starts.
    """

    def __init__(self) -> None:
        self._free_s = 0.0
        self._gaps: list[tuple[float, float]] = []  # (end, start), in order; none overlap

    def serve(self, ready_s: float, busy_s: float) -> float:
        """Return when a job starts."""
        for position in range(bisect_left(self._gaps, (ready_s + busy_s, 0.0)), len(self._gaps)):
            gap_end_s, gap_start_s = self._gaps[position]
            start_s = max(gap_start_s, ready_s)
            if start_s + busy_s <= gap_end_s:
                del self._gaps[position]
                self._note_gap(gap_start_s, start_s)
                self._note_gap(start_s + busy_s, gap_end_s)
                return start_s
        start_s = max(self._free_s, ready_s)
        self._note_gap(self._free_s, start_s)
        self._free_s = start_s + busy_s
        return start_s

    def _note_gap(self, start_s: float, end_s: float) -> None:
        if start_s < end_s:
            insort(self._gaps, (end_s, start_s))
