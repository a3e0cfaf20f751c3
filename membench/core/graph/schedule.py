"""The schedule: a flat program, in the order in which the host issues it.

Semantics that every backend implements:

- Streams are in-order queues. `Work` (a `Compute`, `Offload`, `Prefetch`, `Load`, `Store`, `Drop`, `Encode`, `Decode`
  or `AllReduce`) joins its stream's queue; a `Wait` makes a stream wait for an earlier instruction of another; a
  `Synchronize` makes the host wait for every stream except the gradient-exchange stream, which no paper's
  synchronisation includes.
- Every resident block occupies a *space* of its own size, or of the size opened by `Reserve` or taken over by `Reuse`.
  `Compute` opens a space for each block that it creates, `Prefetch` for the block that it brings back; `Free` closes
  it. So the memory in use at each instruction does not depend on timing.
- A task's workspace is in use while the task is issued. A task on another stream than the compute stream may still run
  while the compute stream goes on: its workspace is in use until the compute stream has waited, by a `Wait` or a
  `Synchronize`, for that task or for later work of its stream. Of such tasks of one stream the largest workspace
  counts.
- `Hold` is the memory of a pool that the step keeps without a block in it: unused room, fragmentation.
- Memory is taken at the compute stream's position: another stream waits for that position before it uses a new space or
  a workspace.
- Memory is given back at the compute stream's position: before a `Free` or `Reuse` of a block, the compute
  stream must have waited for all other streams' work on it. `planning.checking.validate` checks that.
- `Offload` leaves the block on the device; the copy in host memory stays valid until the block is written.
- A task of the host (`Task.on_host`) runs on the host stream, on the processor. It reads and writes copies in host
  memory, and takes no device memory. What it reads must have a valid copy there; what it writes must not be resident
  meanwhile, and has a valid copy from then on. Copies in host memory are ordered like blocks: nothing reads or
  overwrites one before what was issued earlier on it is known to have finished.
- A copy in host memory occupies the block's home there, throughout, or a *buffer* of the block's size. `Offload` and
  `Load` open the buffer, unless `Offload` finds it open. `Drop` closes it: what it contained is valid no longer. A
  buffer that is not dropped closes when the step ends.
- A block whose home is the disk has a valid copy there before and after the step, and none in host memory: its buffer
  is dropped before the step ends. `Load` fills a buffer from the disk. `Store` copies a valid copy in host memory to
  the disk, of any block; both are valid until the block is written.
- Buffers change hands at the load stream's position, as device memory does at the compute stream's: before a `Drop`
  that stream must have waited for all other streams' work on the buffer, and a stream waits for the last `Drop` before
  it opens one. So the host memory in use does not depend on timing either.
- `Encode` also leaves the block, and opens a space of planned size for its encoded form, which is a separate block.
  Data that does not fit is an error. The encoded form stays valid until the block is written.
- A task sees each block after the same writes as in the graph's order; random tasks are issued in that order.
- A space opened by `Reserve` or `Reuse` is filled by the next work. A stream other than the compute stream runs either
  tasks or other work, never both.
- `AllReduce` is issued by every process of a data-parallel step; all run the same program, in the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from membench.core.graph.codec import ActivationCodec
from membench.core.graph.task_graph import TaskGraph
from membench.core.units import format_bytes

COMPUTE_STREAM = "compute"
COPY_STREAM = "copy"
EXCHANGE_STREAM = "exchange"
HOST_STREAM = "host"
LOAD_STREAM = "load"
STORE_STREAM = "store"


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
class Load:
    """Open a buffer in host memory for a block and fill it from the disk."""

    block: int
    stream: str = LOAD_STREAM


@dataclass(frozen=True, slots=True)
class Store:
    """Copy a block from host memory to the disk."""

    block: int
    stream: str = STORE_STREAM


@dataclass(frozen=True, slots=True)
class Drop:
    """Close a block's buffer in host memory."""

    block: int
    stream: str = LOAD_STREAM


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Replace a block in every process by its mean over all processes.

    Attributes:
        root: the process on whose device the mean is taken, and from which it returns; None: the backend chooses.
    """

    block: int
    root: int | None = None
    stream: str = EXCHANGE_STREAM


@dataclass(frozen=True, slots=True)
class Encode:
    """Open a space for a block's encoded form and write it.

    Attributes:
        codec: a frozen record, except in the schedule with which `steps.densities` measures densities: there a
            `codecs.meter.DensityMeter` accumulates them while the schedule runs, so that schedule runs only once.
    """

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
    """Open a space that is larger than the block that will be created or prefetched into it next."""

    block: int
    space_bytes: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """Give the space of a dead block to a block that will be created or prefetched into it next."""

    block: int
    dead: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold that much memory in addition to the blocks; replaces the last `Hold`."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Make a stream wait until an earlier instruction of another stream has finished."""

    stream: str
    instruction: int


@dataclass(frozen=True, slots=True)
class Synchronize:
    """Make the host wait until every stream except the exchange's is idle."""


Work = Compute | Offload | Prefetch | Load | Store | Drop | Encode | Decode | AllReduce
"""Instructions that join a stream's queue and can be waited for."""

DELAYED_STEPS = "delayed_steps"
"""The decision of a method whose steps use weights that lack so many of the last updates."""

CHANGES_NOTHING = "nothing is offloaded, recomputed or encoded"
"""The note of eager's and of plain PyTorch's schedule, and of a method's that found nothing to do."""

Instruction = Work | Free | Reserve | Reuse | Hold | Wait | Synchronize


@dataclass(frozen=True)
class SpaceChanges:
    """Openings and closings of spaces by a schedule, in order, as arrays of int64.

    Attributes:
        instructions, blocks, size_bytes: by which instruction each is, of which block, and the size of the space,
            negative where it closes; a space that is reused closes and opens.
        held_bytes: what each instruction finds held without a block (`Hold`).
    """

    instructions: NDArray[np.int64]
    blocks: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    held_bytes: NDArray[np.int64]


@dataclass(frozen=True)
class Schedule:
    """A program for one step, with the graph that it computes (possibly a rewritten one).

    Attributes:
        strategy: name of the method that made it.
        peak_bytes: the most device memory that the step holds at any instruction, everything included.
        decisions: further decisions of the method, numbers by name, for records.
        reason: why it is this schedule and not another method's, a sentence; empty: the method does not compare.
    """

    strategy: str
    graph: TaskGraph
    instructions: tuple[Instruction, ...]
    peak_bytes: int
    decisions: tuple[tuple[str, float], ...] = ()
    reason: str = ""

    @cached_property
    def turn(self) -> int:
        """Number of instructions before the turn, see `TaskGraph.turn`: all of them if the step has none."""
        turn = self.graph.turn
        computes = ((i, item.task) for i, item in enumerate(self.instructions) if isinstance(item, Compute))
        return next((index for index, task in computes if task == turn), len(self))

    @cached_property
    def space_changes(self) -> SpaceChanges:
        """What the schedule opens and closes, for all that ask for its memory."""
        blocks, tasks = self.graph.blocks, self.graph.tasks
        sizes: dict[int, int] = {}
        found: list[tuple[int, int, int]] = []
        held = np.zeros(len(self), np.int64)
        for index, instruction in enumerate(self.instructions):
            opened: tuple[int, ...] = ()
            match instruction:
                case Compute(task):
                    opened = tasks[task].creates
                case Prefetch(block) | Decode(block) | Encode(encoded=block):
                    opened = (block,)
                case Reserve(block, size_bytes):
                    sizes[block] = size_bytes
                    found.append((index, block, size_bytes))
                case Reuse(block, dead):
                    sizes[block] = sizes.pop(dead)
                    found += [(index, dead, -sizes[block]), (index, block, sizes[block])]
                case Free(block):
                    found.append((index, block, -sizes.pop(block)))
                case Hold(size_bytes):
                    held[index:] = size_bytes
            for block in opened:
                if block not in sizes:  # it has none that was reserved or taken over
                    sizes[block] = blocks[block].size_bytes
                    found.append((index, block, sizes[block]))
        columns = np.array(found, np.int64).reshape(-1, 3)
        return SpaceChanges(columns[:, 0], columns[:, 1], columns[:, 2], held)

    @property
    def rounding(self) -> float:
        """The largest relative error of a number that is kept in encoded form; 0: all results are exact."""
        return max((item.codec.rounding for item in self.instructions if isinstance(item, Encode)), default=0.0)

    @property
    def note(self) -> str:
        """A sentence if the method changes nothing; otherwise empty."""
        changes = Offload | Prefetch | Encode | Decode | Reserve | Reuse | Hold
        if any(isinstance(item, changes) for item in self.instructions):
            return ""
        return "" if any(task.is_recomputed for task in self.graph.tasks) else CHANGES_NOTHING

    @property
    def certificate(self) -> str:
        """A sentence with the lower bound on a step's time, where the method has found one; otherwise empty."""
        found = dict(self.decisions)
        if "lower_bound_s" not in found:
            return ""
        bound = f"no schedule takes less than {found['lower_bound_s']:.6g} s within this memory"
        return f"{bound}; this one takes {found['gap']:.2%} more"

    def __len__(self) -> int:
        return len(self.instructions)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> Iterator[str]:
        """Yield the program as text, one line per instruction."""
        graph = self.graph
        yield (
            f"schedule of {graph.name} (batch {graph.batch_size}) by {self.strategy}: "
            f"{len(self)} instructions, peak {format_bytes(self.peak_bytes)}"
        )
        yield from filter(None, (self.reason, self.note, self.certificate))
        for index, instruction in enumerate(self.instructions):
            verb, stream = type(instruction).__name__.lower(), getattr(instruction, "stream", "")
            match instruction:
                case Compute(task):
                    what = f"compute {graph.tasks[task].name}"
                case Offload(block) | Prefetch(block) | Load(block) | Store(block) | Drop(block) | Free(block):
                    what = f"{verb} {self._describe(block)}"
                case AllReduce(block, root):
                    process = "" if root is None else f" on process {root}"
                    what = f"all-reduce {self._describe(block)}{process}"
                case Encode(block, encoded, codec) | Decode(block, encoded, codec):
                    what = f"{verb} {self._describe(block)}, as {self._describe(encoded)} by {codec}"
                case Reserve(block, space_bytes):
                    what = f"reserve {format_bytes(space_bytes)} for {self._describe(block)}"
                case Reuse(block, dead):
                    what = f"reuse {graph.blocks[dead].name} for {self._describe(block)}"
                case Hold(size_bytes):
                    what = f"hold {format_bytes(size_bytes)} unused"
                case Wait(_, earlier):
                    what = f"wait for {earlier}"
                case Synchronize():
                    what = verb
            yield f"{index:6d}  {stream:<8}  {what}"

    def _describe(self, block: int) -> str:
        return f"{self.graph.blocks[block].name} ({format_bytes(self.graph.blocks[block].size_bytes)})"


@dataclass(frozen=True)
class RepeatedSchedule:
    """A schedule, and how often it runs in one step: each time on other samples, while gradients accumulate.

    A step in micro-batches is a tuple of these, the last for the remaining samples; a step on the whole batch is a
    single one with a count of 1.
    """

    schedule: Schedule
    count: int = 1

    def __str__(self) -> str:
        return str(self.schedule) if self.count == 1 else f"{self.count} times the {self.schedule}"

    @property
    def samples(self) -> int:
        return self.count * self.schedule.graph.batch_size
