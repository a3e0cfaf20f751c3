"""The schedule: a flat program, in the order in which the host issues it.

Semantics that every backend keeps:

- Streams are in-order queues. `Work` (a `Compute`, `Offload`, `Prefetch`, `Encode`, `Decode` or `AllReduce`) joins its
  stream's queue; a `Wait` makes a stream wait for an earlier instruction of another; a `Synchronize` makes the host wait for
  all of them but the exchange between processes, which no method's own synchronization was meant for.
- Every resident block occupies a *space*, its own size unless it was opened by `Reserve` or taken over by
  `Reuse`. `Compute` opens a space for each block that it creates, `Prefetch` for the block that it
  brings back, `Free` closes it. So the memory in use at each instruction does not depend on timing.
- `Hold` says how much of a pool the step keeps although no block lies there: unused room, fragmentation.
- Memory is given back at the compute stream's position: before a `Free` or `Reuse` of a block, the compute
  stream must have waited for whatever other streams still do with it. `planning.validate` checks that.
- `Offload` leaves the block on the device; the copy in host memory stays valid until the block is written.
- `Encode` leaves it too, and opens a space for the encoded form, a block of its own: as large as was planned for the
  data, whatever it turns out to need. Data that does not fit is an error. The encoded form is valid as a host copy is.
- `AllReduce` is met by every process of a data-parallel step, each running the same program, in the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from membench.core.codec import ActivationCodec
from membench.core.task_graph import TaskGraph
from membench.core.units import format_bytes

COMPUTE_STREAM = "compute"
COPY_STREAM = "copy"
EXCHANGE_STREAM = "exchange"


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a task."""

    task: int
    stream: str = COMPUTE_STREAM


@dataclass(frozen=True, slots=True)
class Offload:
    """Copy a block from the device to the host."""

    block: int
    stream: str = COPY_STREAM


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Open a space for a block and copy its contents back from the host."""

    block: int
    stream: str = COPY_STREAM


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Put the mean of a block over all processes in the block's place, in every process.

    Attributes:
        root: the process on whose device the mean is taken, and from which it returns; None: wherever the processes
            meet, which is for the backend to say.
    """

    block: int
    root: int | None = None
    stream: str = EXCHANGE_STREAM


@dataclass(frozen=True, slots=True)
class Encode:
    """Open a space for a block's encoded form and write it."""

    block: int
    encoded: int
    codec: ActivationCodec
    stream: str


@dataclass(frozen=True, slots=True)
class Decode:
    """Open a space for a block and fill it from its encoded form."""

    block: int
    encoded: int
    codec: ActivationCodec
    stream: str


@dataclass(frozen=True, slots=True)
class Free:
    """Close a block's space."""

    block: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Open a space that is larger than the block which will be created or prefetched into it next."""

    block: int
    space_bytes: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """Give the space of a dead block to a block which will be created or prefetched into it next."""

    block: int
    dead: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold that much memory beside the blocks, instead of what the last `Hold` said."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Make a stream wait until an earlier instruction of another stream has finished."""

    stream: str
    instruction: int


@dataclass(frozen=True, slots=True)
class Synchronize:
    """Make the host wait until every stream is idle, the exchange's excepted."""


Work = Compute | Offload | Prefetch | Encode | Decode | AllReduce
"""What joins a stream's queue and can be waited for."""

Instruction = Work | Free | Reserve | Reuse | Hold | Wait | Synchronize


@dataclass(frozen=True)
class Schedule:
    """A program for one training step, with the graph that it computes (possibly a rewritten one).

    Attributes:
        strategy: name of the method that made it.
        peak_bytes: what the step holds on the device at its worst moment, all included.
        decisions: what the method decided on beside the program, in numbers by name, for records.
    """

    strategy: str
    graph: TaskGraph
    instructions: tuple[Instruction, ...]
    peak_bytes: int
    decisions: tuple[tuple[str, float], ...] = ()

    @property
    def rounding(self) -> float:
        """The largest relative error of a number that waits for its use in encoded form; 0: all results are exact."""
        return max(
            (item.codec.rounding for item in self.instructions if isinstance(item, Encode)), default=0.0
        )

    def __len__(self) -> int:
        return len(self.instructions)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the program as text, a line per instruction, for a person to read."""
        graph = self.graph
        yield (
            f"schedule of {graph.name} (batch {graph.batch_size}) by {self.strategy}: "
            f"{len(self)} instructions, peak {format_bytes(self.peak_bytes)}"
        )
        for index, instruction in enumerate(self.instructions):
            match instruction:
                case Compute(task, stream):
                    what = f"compute {graph.tasks[task].name}"
                case Offload(block, stream) | Prefetch(block, stream):
                    what = f"{type(instruction).__name__.lower()} {self._describe(block)}"
                case AllReduce(block, root, stream):
                    what = f"all-reduce {self._describe(block)}" + (
                        "" if root is None else f" on process {root}"
                    )
                case Encode(block, encoded, codec, stream) | Decode(block, encoded, codec, stream):
                    verb = type(instruction).__name__.lower()
                    what = f"{verb} {self._describe(block)}, as {self._describe(encoded)} by {codec}"
                case Free(block):
                    stream, what = "", f"free {self._describe(block)}"
                case Reserve(block, space_bytes):
                    stream, what = "", f"reserve {format_bytes(space_bytes)} for {self._describe(block)}"
                case Reuse(block, dead):
                    stream, what = "", f"reuse {graph.blocks[dead].name} for {self._describe(block)}"
                case Hold(size_bytes):
                    stream, what = "", f"hold {format_bytes(size_bytes)} unused"
                case Wait(stream, earlier):
                    what = f"wait for {earlier}"
                case Synchronize():
                    stream, what = "", "synchronize"
            yield f"{index:6d}  {stream:<8}  {what}"

    def _describe(self, block: int) -> str:
        return f"{self.graph.blocks[block].name} ({format_bytes(self.graph.blocks[block].size_bytes)})"


@dataclass(frozen=True)
class RepeatedSchedule:
    """A schedule, and how often it runs in one step: each time on samples of its own, gradients adding up.

    A step in micro-batches is a tuple of these, the last one for the samples that are left over; a step on its whole
    batch is one that runs once.
    """

    schedule: Schedule
    count: int = 1

    def __str__(self) -> str:
        return str(self.schedule) if self.count == 1 else f"{self.count} times the {self.schedule}"

    @property
    def samples(self) -> int:
        return self.count * self.schedule.graph.batch_size
