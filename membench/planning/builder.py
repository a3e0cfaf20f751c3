"""ScheduleBuilder: the interface through which strategies emit instructions.

A strategy decides; the builder keeps the program legal. It tracks the blocks that are resident, that have a valid copy
on the host and that are dead, adds the waits between streams that a copy needs, and refuses illegal requests.
`planning.parallel.exchange` inserts the exchange of gradients into a finished program.
"""

from collections.abc import Iterable

from membench.core.errors import InfeasibleSchedule, UnsupportedStrategy
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    COPY_STREAM,
    HOST_STREAM,
    Compute,
    Decode,
    Encode,
    Free,
    Hold,
    Instruction,
    Offload,
    Prefetch,
    Reserve,
    Reuse,
    Schedule,
    Synchronize,
    Wait,
)
from membench.core.graph.task_graph import RESULT_ROLES, Task, TaskGraph
from membench.planning.accesses import Access, Accesses
from membench.planning.pool import Pool, PoolUse
from membench.planning.region import Region
from membench.planning.uses import touching_tasks
from membench.planning.workspaces import Workspaces


class ScheduleBuilder:
    """Builds one schedule of a graph.

    Args:
        strategy: the method's name, for the schedule.
        graph: annotated; each task is to be computed once, in any order that its data allows.
        budget_bytes: the most that the step may hold on the device, the caller's blocks included.
        region: pieces of memory that blocks share; None: each block has a space of its own.
        pool: serves spaces and workspaces; None: memory is held only while it is used.
    """

    def __init__(
        self,
        strategy: str,
        graph: TaskGraph,
        *,
        budget_bytes: int | None,
        region: Region | None = None,
        pool: Pool | None = None,
    ) -> None:
        self.graph = graph
        self._strategy = strategy
        self._budget_bytes = budget_bytes
        self._region = region or Region((), {})
        self._pool = PoolUse(pool) if pool else None
        self._held_bytes = 0  # of the pool, not used by blocks
        self._program: list[Instruction] = []
        self._space_bytes: dict[int, int] = {}  # of resident blocks
        self._dead: dict[int, None] = {}  # resident blocks, in the order in which they died
        self._on_host = {block.index for block in graph.blocks if block.host_location}
        self._encoded: dict[int, Encode] = {}  # the last encoding of a block, until it is written or decoded
        self._leftover: dict[int, int] = {}  # piece of the region -> dead block that still holds its space
        self._computed: set[int] = set()
        self._to_create = {block for task in graph.tasks for block in task.creates}
        self._uses_left = [len(tasks) for tasks in touching_tasks(graph)]
        self._uses_left_on_host = [len(tasks) for tasks in touching_tasks(graph, on_host=True)]
        self._on_device, self._in_host_memory = Accesses(), Accesses()
        self._last_on_stream: dict[str, int] = {}
        self._known: dict[tuple[str, str], int] = {}  # (stream, other): instruction it has waited for
        self._workspaces = Workspaces()  # of tasks on other streams
        self._live_bytes = graph.external_bytes
        self._peak_bytes = graph.external_bytes
        self._peak_task = "the caller's weights and inputs"

    # ---- queries of a strategy ----------------------------------------------------------------------

    @property
    def live_bytes(self) -> int:
        """Bytes held now: the caller's blocks and every open space."""
        return self._live_bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes held so far."""
        return self._peak_bytes

    def is_resident(self, block: int) -> bool:
        return block in self._space_bytes

    def is_dead(self, block: int) -> bool:
        """Return whether no later task of the device touches the block.

        A result, and a block that is yet to be copied to the host, count as touched.
        """
        wanted = self.graph.blocks[block]
        is_wanted_there = wanted.host_location is not None or self._uses_left_on_host[block] > 0
        is_stored = not is_wanted_there or block in self._on_host
        return not self._uses_left[block] and wanted.role not in RESULT_ROLES and is_stored

    def dead_blocks(self) -> list[int]:
        """Return the resident dead blocks, in the order in which they died."""
        return list(self._dead)

    def is_on_host(self, block: int) -> bool:
        return block in self._on_host

    def is_offloaded(self, block: int) -> bool:
        """Return whether a block is on the host only, and has to be prefetched before the next task reads it."""
        return self.is_on_host(block) and not self.is_resident(block) and block not in self._to_create

    def is_encoded(self, block: int) -> bool:
        return block in self._encoded

    # ---- decisions of a strategy --------------------------------------------------------------------

    def compute(self, task: Task, *, stream: str | None = None) -> None:
        """Run a task; its inputs must be resident, those of a task of the host in host memory.

        Args:
            stream: stream of a task of the device; None: the compute stream, or that of its collective.

        Raises:
            UnsupportedStrategy: an input is not there.
        """
        if task.on_host:
            self._compute_on_host(task)
            return
        stream = stream or (task.collective.stream if task.collective else COMPUTE_STREAM)
        for block in task.reads:
            if not (self.is_resident(block) or self.graph.blocks[block].is_external):
                self._refuse(f"task {task.name!r} reads {self._name(block)!r}, which is not resident")
            self._wait_for(stream, self._on_device.before(block, writes=False))
        for block in task.writes:
            self._wait_for(stream, self._on_device.before(block, writes=True))
        self._follow_compute(stream)
        for block in task.creates:
            self._open_space(block)
        workspace_bytes = task.workspace_bytes
        if stream != COMPUTE_STREAM:
            self._workspaces.take(stream, len(self._program), workspace_bytes)
            workspace_bytes = 0
        self._hold_the_rest(workspace_bytes)
        index = self._emit(Compute(task.index, stream), stream)
        self._note_live(workspace_bytes, task.name)
        self._note_uses(task, stream, index)

    def _note_uses(self, task: Task, stream: str, index: int) -> None:
        """Note that a task has been issued as the instruction `index`."""
        self._computed.add(task.index)
        self._on_host.difference_update(task.writes)
        self._to_create.difference_update(task.creates)
        for block in dict.fromkeys((*task.reads, *task.writes)):
            self._on_device.note(block, (stream, index), writes=block in task.writes)
            self._uses_left[block] -= 1
            if self.is_resident(block) and self.is_dead(block):
                self._dead[block] = None
        for block in task.writes:
            self._forget_encoded(block)

    def _compute_on_host(self, task: Task) -> None:
        touched = dict.fromkeys((*task.reads, *task.writes))
        if missing := [block for block in touched if not self.is_on_host(block)]:
            self._refuse(f"task {task.name!r} of the host uses {self._name(missing[0])!r}, which is not in host memory")
        users = [user for block in touched for user in self._in_host_memory.before(block, writes=block in task.writes)]
        for stream, index in sorted(users, key=lambda user: -user[1]):  # later ones include earlier ones
            self._wait(HOST_STREAM, stream, index)
        if resident := [block for block in task.writes if self.is_resident(block)]:
            self._refuse(f"task {task.name!r} of the host writes {self._name(resident[0])!r}, which is resident")
        index = self._emit(Compute(task.index, HOST_STREAM), HOST_STREAM)
        self._computed.add(task.index)
        for block in touched:
            self._in_host_memory.note(block, (HOST_STREAM, index), writes=block in task.writes)
            self._uses_left_on_host[block] -= 1

    def join(self, *streams: str) -> None:
        """Let the compute stream wait for all that other streams have been given."""
        for stream in streams:
            if stream in self._last_on_stream:
                self._wait(COMPUTE_STREAM, stream, self._last_on_stream[stream])

    def offload(self, block: int) -> None:
        """Copy a resident block to the host; it stays on the device until it is freed."""
        if not self.is_resident(block):
            self._refuse(f"{self._name(block)!r} is not resident and cannot be offloaded")
        if self.is_on_host(block):
            self._refuse(f"{self._name(block)!r} is on the host already; a second copy would be wasted")
        self._wait_for(COPY_STREAM, self._on_device.before(block, writes=False))
        self._wait_for(COPY_STREAM, self._in_host_memory.before(block, writes=True))
        index = self._emit(Offload(block, COPY_STREAM), COPY_STREAM)
        self._on_device.note(block, (COPY_STREAM, index), writes=False)
        self._in_host_memory.note(block, (COPY_STREAM, index), writes=True)
        self._on_host.add(block)

    def prefetch(self, block: int, *, stream: str = COPY_STREAM) -> None:
        """Copy a block from the host, into memory that is free at the compute stream's position.

        It may be dead: some papers' methods copy back what no task reads.
        """
        if self.is_resident(block):
            self._refuse(f"{self._name(block)!r} is resident already")
        if not self.is_on_host(block):
            self._refuse(f"{self._name(block)!r} was never offloaded, or has been written since")
        index = self._fill(block, Prefetch(block, stream))
        self._in_host_memory.note(block, (stream, index), writes=False)
        if self.is_dead(block):
            self._dead[block] = None

    def prefetch_offloaded(self, blocks: Iterable[int], *, stream: str = COPY_STREAM) -> None:
        """Prefetch those of the blocks that are on the host only, in the order of their indices."""
        for block in sorted(blocks):
            if self.is_offloaded(block):
                self.prefetch(block, stream=stream)

    def encode(self, block: int, encoded: int, codec: ActivationCodec, *, stream: str) -> None:
        """Write a resident block's encoded form, a block of the graph that no task touches.

        The original stays until it is freed; the encoded form dies when it is decoded.
        """
        if not self.is_resident(block):
            self._refuse(f"{self._name(block)!r} is not resident and cannot be encoded")
        self._wait_for(stream, self._on_device.before(block, writes=False))
        encode = Encode(block, encoded, codec, stream)
        index = self._fill(encoded, encode)
        self._on_device.note(block, (stream, index), writes=False)
        self._uses_left[encoded] = 1
        self._encoded[block] = encode

    def decode(self, block: int, *, stream: str) -> None:
        """Decode a block from its encoded form, into memory that is free at the compute stream's position."""
        if self.is_resident(block):
            self._refuse(f"{self._name(block)!r} is resident already")
        if not self.is_encoded(block):
            self._refuse(f"{self._name(block)!r} was never encoded, or has been written since")
        encode = self._encoded[block]
        self._wait_for(stream, self._on_device.before(encode.encoded, writes=False))
        index = self._fill(block, Decode(block, encode.encoded, encode.codec, stream))
        self._on_device.note(encode.encoded, (stream, index), writes=False)
        self._forget_encoded(block)

    def free(self, block: int) -> None:
        """Give a block's memory back, once the compute stream has waited for all that still use it."""
        if not self.is_resident(block):
            self._refuse(f"{self._name(block)!r} is not resident and cannot be freed")
        has_copy = self.is_on_host(block) or self.is_encoded(block)
        if not (self.graph.blocks[block].is_transient and (self.is_dead(block) or has_copy)):
            self._refuse(
                f"{self._name(block)!r} is the caller's, or still needed and has no copy on the host, and no encoded "
                f"form"
            )
        self._wait_for(COMPUTE_STREAM, self._on_device.before(block, writes=True))
        piece = self._region.piece_of(block)
        if piece is not None:
            self._leftover[piece] = block  # the region is fixed: the space waits for its next block
        else:
            self._emit(Free(block))
            self._live_bytes -= self._space_bytes[block]
            if self._pool:
                self._pool.give_back(block, self._space_bytes[block])
        del self._space_bytes[block]
        self._dead.pop(block, None)

    def free_dead(self) -> None:
        """Free every resident block that no later task touches."""
        for block in self.dead_blocks():
            self.free(block)

    def reuse(self, block: int, *, dead: int) -> None:
        """Let a block that is created next take a dead block's space."""
        if not self.is_resident(dead) or not self.is_dead(dead):
            self._refuse(f"{self._name(dead)!r} is not a resident dead block whose space could be reused")
        if self.graph.blocks[block].size_bytes > self._space_bytes[dead]:
            self._refuse(f"{self._name(block)!r} does not fit into the space of {self._name(dead)!r}")
        self._wait_for(COMPUTE_STREAM, self._on_device.before(dead, writes=True))
        self._emit(Reuse(block, dead))
        self._space_bytes[block] = self._space_bytes.pop(dead)
        del self._dead[dead]
        if self._pool:
            self._pool.hand_over(dead, block)

    def synchronize(self) -> None:
        """Let the host wait for every stream."""
        self._emit(Synchronize())
        last = self._last_on_stream
        self._known |= {(stream, other): index for stream in last for other, index in last.items()}
        self._workspaces.synchronized()

    def finish(self) -> Schedule:
        """Wait for every stream, free what is left, and return the schedule.

        Raises:
            UnsupportedStrategy: a task was not computed.
            InfeasibleSchedule: the peak exceeds the budget.
        """
        for task in self.graph.tasks:
            if task.index not in self._computed:
                self._refuse(f"task {task.name!r} was never computed")
        if self._budget_bytes is not None and self._peak_bytes > self._budget_bytes:
            raise InfeasibleSchedule(
                task=self._peak_task,
                needed_bytes=self._peak_bytes,
                budget_bytes=self._budget_bytes,
                lower_bound_bytes=self.graph.lower_bound_bytes,
            )
        for other, index in self._last_on_stream.items():
            self._wait(COMPUTE_STREAM, other, index)
        for block in (*self.dead_blocks(), *self._leftover.values()):
            self._emit(Free(block))
        if self._held_bytes:
            self._emit(Hold(0))
        return Schedule(self._strategy, self.graph, tuple(self._program), self._peak_bytes)

    def _fill(self, block: int, work: Prefetch | Encode | Decode) -> int:
        """Open a block's space, fill it by a copy or a codec, and return the position of that instruction."""
        self._follow_compute(work.stream)
        self._open_space(block)
        self._wait_for(
            work.stream, self._on_device.before(block, writes=True)
        )  # among them the offload or the encoding
        if isinstance(work, Prefetch):
            self._wait_for(work.stream, self._in_host_memory.before(block, writes=False))
        self._hold_the_rest(0)
        index = self._emit(work, work.stream)
        self._note_live(0, f"the {type(work).__name__.lower()} of {self._name(work.block)}")
        self._on_device.note(block, (work.stream, index), writes=True)
        return index

    def _forget_encoded(self, block: int) -> None:
        """Mark a block's encoded form as dead, if it has one."""
        if encode := self._encoded.pop(block, None):
            self._uses_left[encode.encoded] = 0
            self._dead[encode.encoded] = None

    def _emit(self, instruction: Instruction, stream: str | None = None) -> int:
        self._program.append(instruction)
        index = len(self._program) - 1
        if stream is not None:
            self._last_on_stream[stream] = index
        return index

    def _wait(self, stream: str, other: str, index: int) -> None:
        """Make a stream wait for another's instruction, unless it has waited for that or a later one."""
        if stream != other and self._known.get((stream, other), -1) < index:
            self._emit(Wait(stream, index))
            self._known[stream, other] = index
            if stream == COMPUTE_STREAM:
                self._workspaces.waited(other, index)

    def _wait_for(self, stream: str, accesses: Iterable[Access]) -> None:
        for other, index in accesses:
            self._wait(stream, other, index)

    def _follow_compute(self, stream: str) -> None:
        """Make a stream wait for the compute stream's position, from which on it may use memory that is taken there."""
        if COMPUTE_STREAM in self._last_on_stream:
            self._wait(stream, COMPUTE_STREAM, self._last_on_stream[COMPUTE_STREAM])

    def _open_space(self, block: int) -> None:
        """Take memory for a block."""
        if block in self._space_bytes:  # taken over by reuse()
            return
        piece = self._region.piece_of(block)
        if piece is None:
            self._space_bytes[block] = self.graph.blocks[block].size_bytes
            self._live_bytes += self._space_bytes[block]
            if self._pool:
                self._pool.take(self.graph.blocks[block])
            return
        self._space_bytes[block] = self._region.piece_bytes[piece]
        if piece in self._leftover:
            self._emit(Reuse(block, self._leftover.pop(piece)))
        else:
            self._live_bytes += self._space_bytes[block]
            if self._pool:
                self._pool.take_for_good(self._space_bytes[block])
                self._hold_the_rest(0)
            self._emit(Reserve(block, self._space_bytes[block]))

    def _hold_the_rest(self, workspace_bytes: int) -> None:
        """Hold the part of the pool that is unused during the next instruction, which has that much workspace."""
        if self._pool is None:
            return
        unused_bytes = self._pool.unused_bytes(workspace_bytes + self._workspaces.held_bytes)
        if unused_bytes != self._held_bytes:
            self._emit(Hold(unused_bytes))
            self._held_bytes = unused_bytes

    def _note_live(self, workspace_bytes: int, task: str) -> None:
        live_bytes = self._live_bytes + self._held_bytes + self._workspaces.held_bytes + workspace_bytes
        if live_bytes > self._peak_bytes:
            self._peak_bytes = live_bytes
            self._peak_task = task

    def _name(self, block: int) -> str:
        return self.graph.blocks[block].name

    def _refuse(self, cause: str) -> None:
        raise UnsupportedStrategy(f"strategy {self._strategy!r} is wrong: {cause}")
