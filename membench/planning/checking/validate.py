"""An independent check of a schedule, written without the builder.

One walk over the program with a vector clock per stream. A hazard is two accesses to the same memory, at least one of
them a write, whose order is not known. Giving memory back counts as a write at the compute stream's position, because
the next user of that memory starts there.
"""

from dataclasses import dataclass, field
from weakref import proxy

from membench.core.errors import InvalidSchedule
from membench.core.graph.schedule import (
    COMPUTE_STREAM,
    HOST_STREAM,
    AllReduce,
    Compute,
    Decode,
    Drop,
    Encode,
    Free,
    Hold,
    Instruction,
    Load,
    Offload,
    Prefetch,
    Reserve,
    Reuse,
    Schedule,
    Store,
    Synchronize,
    Wait,
    Work,
)
from membench.core.graph.task_graph import RESULT_ROLES, Phase, Task, TaskGraph
from membench.planning.checking.clocks import Access, Clocks
from membench.planning.checking.host_copies import HostCopies
from membench.planning.checking.pending import pending_hazard


@dataclass(slots=True)
class _Memory:
    """The state of one block's device memory."""

    resident: bool = False
    filled: bool = False
    writer: Access | None = None
    readers: list[Access] = field(default_factory=list)
    space_bytes: int = 0
    version: int = 0  # number of tasks that have written it
    averaged: bool = False  # over all processes
    encoded_by: Encode | None = None  # the latest encoding, while the encoded form is valid


def validate(
    schedule: Schedule,
    *,
    budget_bytes: int | None = None,
    exchanges: bool = False,
    host_memory_bytes: int | None = None,
) -> None:
    """Check that a schedule computes its graph correctly under any timing, and holds as much memory as it states.

    A task must see each block after the same writes as in the graph's order, no more and no fewer. Random tasks keep
    that order among themselves, because each draws from the generator where the previous one left it.

    Args:
        exchanges: whether every gradient must be averaged over all processes, or none.
        host_memory_bytes: the most that homes and buffers in host memory may hold.

    Raises:
        InvalidSchedule: names the first wrong instruction and the cause.
    """
    if hazard := pending_hazard(schedule.graph):
        raise InvalidSchedule(0, hazard)
    _Walk(schedule, budget_bytes, exchanges, host_memory_bytes).run()


class _Walk:
    def __init__(
        self, schedule: Schedule, budget_bytes: int | None, exchanges: bool, host_memory_bytes: int | None
    ) -> None:
        self.schedule = schedule
        self.graph = schedule.graph
        self.budget_bytes = budget_bytes
        self.averages = {value.block for _, value in self.graph.gradients if value} if exchanges else set()
        self.versions = _versions(self.graph)
        self.last_random = -1  # task
        self.last_collective: dict[str, int] = {}  # task by stream
        self.opened: set[int] = set()  # blocks whose space the next work must fill
        self.of_collectives = {task.collective.stream for task in self.graph.tasks if task.collective}
        self.computes_on: dict[str, bool] = {}  # by stream: whether its work is tasks, or something else
        self.clocks = Clocks()
        self.memory = [_Memory(block.is_external, block.is_external) for block in self.graph.blocks]
        self.computed: set[int] = set()
        self.live_bytes = self.peak_bytes = self.graph.external_bytes
        self.held_bytes = 0
        self.workspaces: dict[str, dict[int, int]] = {}  # by stream and task, until the compute stream waits
        self.index = 0
        self.host = HostCopies(self.graph, proxy(self), host_memory_bytes)

    def run(self) -> None:
        for index, instruction in enumerate(self.schedule.instructions):
            self.index = index
            self._follow(instruction)
            if isinstance(instruction, Work):
                self._check_work(instruction)
        self._check_end()

    # ---- instructions -------------------------------------------------------------------------------

    def _follow(self, instruction: Instruction) -> None:
        match instruction:
            case Compute(task, stream):
                self._compute(task, stream)
            case Free(block):
                self._close(block)
            case Wait(stream, earlier):
                self._wait(stream, earlier)
            case Offload() | Prefetch():
                self._copy(instruction)
            case Load(block, stream) | Store(block, stream) | Drop(block, stream):
                self.clocks.issue(stream, self.index)
                move = {Load: self.host.load, Store: self.host.store, Drop: self.host.drop}
                move[type(instruction)](block, (stream, self.index))
            case Encode() | Decode():
                self._convert(instruction)
            case AllReduce(block, _, stream):
                self._all_reduce(block, stream)
            case Reserve(block, space_bytes):
                self._open(block, space_bytes)
                self.opened.add(block)
            case Reuse(block, dead):
                space_bytes = self.memory[dead].space_bytes
                self._close(dead)
                self._open(block, space_bytes)
                self.opened.add(block)
            case Hold(size_bytes):
                self.held_bytes = size_bytes
                self._check_budget()
            case Synchronize():
                self._synchronize()

    def _check_work(self, work: Work) -> None:
        if self.opened:
            self.hazard(f"{self._name(min(self.opened))} has a space that the next work does not fill")
        is_task = isinstance(work, Compute)
        if work.stream != COMPUTE_STREAM and self.computes_on.setdefault(work.stream, is_task) != is_task:
            self.hazard(f"stream {work.stream!r} runs tasks and other work, whose results tasks could not find")

    def _compute(self, task_index: int, stream: str) -> None:
        task = self.graph.tasks[task_index]
        if task_index in self.computed:
            self.hazard(f"task {task.name} runs twice")
        self.computed.add(task_index)
        self.clocks.issue(stream, self.index)
        if task.random:
            if task_index < self.last_random or stream != COMPUTE_STREAM:
                self.hazard(f"random task {task.name} does not run in the graph's order on the compute stream")
            self.last_random = task_index
        self._check_versions(task)
        self._check_stream(task, stream)
        if task.on_host:
            self._compute_on_host(task)
            return
        for block in task.reads:
            self._read(block, stream)
        for block in task.creates:
            self._take_memory(block, stream)
        for block in task.writes:
            if not self.memory[block].resident:
                self.hazard(f"{self._name(block)} is written while it is not resident")
            self._write(block, stream, applies=task.phase is Phase.UPDATE)
            self.memory[block].version += 1
        self._take_workspace(task, stream)

    def _check_stream(self, task: Task, stream: str) -> None:
        if task.on_host != (stream == HOST_STREAM):
            self.hazard(f"task {task.name} runs on stream {stream!r}, which is not of its processor")
        needed = task.collective.stream if task.collective else None
        if needed != (stream if stream in self.of_collectives else None):
            self.hazard(f"task {task.name} runs on stream {stream!r}, which is not that of its collective")
        if task.collective:
            if task.index < self.last_collective.get(stream, -1):
                self.hazard(f"collective {task.name} does not run in the graph's order, as in other ranks")
            self.last_collective[stream] = task.index

    def _check_versions(self, task: Task) -> None:
        for block, version in zip((*task.reads, *task.writes), self.versions[task.index], strict=True):
            memory = self.memory[block]
            if memory.averaged and task.phase is not Phase.UPDATE:
                self.hazard(f"{self._name(block)} is used after it was averaged over all processes")
            if task.phase is Phase.UPDATE and block in self.averages and not memory.averaged:
                self.hazard(f"{self._name(block)} is applied before it was averaged over all processes")
            if memory.version != version:
                self.hazard(
                    f"{task.name} uses {self._name(block)} after {memory.version} of its writes, not after {version}"
                )

    def _compute_on_host(self, task: Task) -> None:
        if task.creates or task.workspace_bytes:
            self.hazard(f"task {task.name} of the host takes device memory")
        access = (HOST_STREAM, self.index)
        for block in task.reads:
            self.host.read(block, access)
        for block in task.writes:
            if self.memory[block].resident:
                self.hazard(f"{self._name(block)} is written on the host while it is resident")
            if not self.graph.blocks[block].host_location:
                self.hazard(f"{self._name(block)} is written on the host, where it has no home")
            self.host.change(block, access)
            self.memory[block].encoded_by = None
            self.memory[block].version += 1

    def _copy(self, copy: Offload | Prefetch) -> None:
        block, stream = copy.block, copy.stream
        self.clocks.issue(stream, self.index)
        if isinstance(copy, Offload):
            self._read(block, stream)
            if self.host.is_valid(block):
                self.hazard(f"{self._name(block)} is offloaded twice")
            self.host.fill(block, (stream, self.index))
            return
        self.host.read(block, (stream, self.index))
        self._fill(block, stream, again=True)

    def _convert(self, conversion: Encode | Decode) -> None:
        block, encoded, stream = conversion.block, conversion.encoded, conversion.stream
        self.clocks.issue(stream, self.index)
        memory = self.memory[block]
        if isinstance(conversion, Encode):
            self._read(block, stream)
            self._fill(encoded, stream)
            memory.encoded_by = conversion
            return
        self._read(encoded, stream)
        made = memory.encoded_by
        if made is None or (made.encoded, made.codec) != (encoded, conversion.codec):
            self.hazard(f"{self._name(block)} has no valid form in {self._name(encoded)}")
        self._fill(block, stream, again=True)

    def _fill(self, block: int, stream: str, *, again: bool = False) -> None:
        """Open a space and fill it; `again`: with the block's earlier contents, so that its copies stay valid."""
        self._take_memory(block, stream)
        self._write(block, stream, again=again)
        self._check_budget()

    def _all_reduce(self, block: int, stream: str) -> None:
        self.clocks.issue(stream, self.index)
        self._read(block, stream)
        self._write(block, stream)
        if block not in self.averages:
            self.hazard(f"{self._name(block)} is averaged over all processes, which this step does not ask for")
        self.memory[block].averaged = True

    def _wait(self, stream: str, earlier: int) -> None:
        other = self.clocks.wait(stream, earlier)
        if other is None:
            self.hazard(f"waits for instruction {earlier}, which is not earlier work of a stream")
        elif stream == COMPUTE_STREAM:
            self._release_workspaces(other, earlier)

    def _synchronize(self) -> None:
        for stream, index in self.clocks.synchronize().items():
            self._release_workspaces(stream, index)

    # ---- memory -------------------------------------------------------------------------------------

    def _read(self, block: int, stream: str) -> None:
        memory = self.memory[block]
        if not memory.resident or not memory.filled:
            self.hazard(f"{self._name(block)} is read while it is not resident")
        if not self.clocks.known(stream, memory.writer):
            self.hazard(f"{self._name(block)} is read on {stream} while {self.what(memory.writer)} may still write it")
        memory.readers.append((stream, self.index))

    def _write(self, block: int, stream: str, *, again: bool = False, applies: bool = False) -> None:
        """Write a block: with its earlier contents, so that its copies stay valid, or by a task that applies a mean."""
        memory = self.memory[block]
        if memory.averaged and not (again or applies):
            self.hazard(f"{self._name(block)} changes after it was averaged over all processes")
        self._check_unused(block, stream, "overwritten")
        memory.filled = True
        self.opened.discard(block)
        memory.writer = (stream, self.index)
        memory.readers = [reader for reader in memory.readers if reader[1] == self.index]
        if not again:
            self.host.invalidate(block)
            memory.encoded_by = None

    def _check_unused(self, block: int, stream: str, verb: str) -> None:
        for access in (self.memory[block].writer, *self.memory[block].readers):
            if access is not None and access[1] != self.index and not self.clocks.known(stream, access):
                self.hazard(f"{self._name(block)} is {verb} while {self.what(access)} may still use it")

    def _take_memory(self, block: int, stream: str) -> None:
        if self.memory[block].filled:
            self.hazard(f"{self._name(block)} is filled although it is resident")
        if not self.memory[block].resident:
            self._open(block, self.graph.blocks[block].size_bytes)
        self._check_position(stream, self._name(block))

    def _check_position(self, stream: str, what: str) -> None:
        position = self.clocks.latest.get(COMPUTE_STREAM)
        if position is not None and not self.clocks.known(stream, (COMPUTE_STREAM, position)):
            self.hazard(f"{what} takes memory before the compute stream has come to this point")

    def _open(self, block: int, space_bytes: int) -> None:
        memory = self.memory[block]
        if memory.resident:
            self.hazard(f"{self._name(block)} gets memory twice")
        if space_bytes < self.graph.blocks[block].size_bytes:
            self.hazard(f"{self._name(block)} does not fit into {space_bytes} bytes")
        memory.resident, memory.filled, memory.space_bytes = True, False, space_bytes
        memory.writer, memory.readers = None, []
        self.live_bytes += space_bytes
        self._check_budget()

    def _close(self, block: int) -> None:
        memory = self.memory[block]
        if not (memory.filled and self.graph.blocks[block].is_transient):
            self.hazard(f"{self._name(block)} is given back although the step does not hold it alone")
        self._check_unused(block, COMPUTE_STREAM, "given back")
        memory.resident = memory.filled = False
        memory.writer, memory.readers = None, []
        self.live_bytes -= memory.space_bytes

    def _take_workspace(self, task: Task, stream: str) -> None:
        if task.workspace_bytes:
            self._check_position(stream, f"the workspace of {task.name}")
        if stream != COMPUTE_STREAM:
            self.workspaces.setdefault(stream, {})[self.index] = task.workspace_bytes
        self._check_budget(task.workspace_bytes if stream == COMPUTE_STREAM else 0)

    def _release_workspaces(self, stream: str, index: int) -> None:
        """Release the workspaces of a stream's tasks up to one that the compute stream has waited for."""
        pending = self.workspaces.get(stream, {})
        self.workspaces[stream] = {task: size for task, size in pending.items() if task > index}

    def _check_budget(self, workspace_bytes: int = 0) -> None:
        for sizes in self.workspaces.values():
            workspace_bytes += max(sizes.values(), default=0)
        needed = self.live_bytes + self.held_bytes + workspace_bytes
        self.peak_bytes = max(self.peak_bytes, needed)
        if needed > (stated := self.schedule.peak_bytes):
            self.hazard(f"holds {needed} bytes, more than the schedule's stated peak {stated}")
        if self.budget_bytes is not None and needed > self.budget_bytes:
            self.hazard(f"holds {needed} bytes, more than the budget of {self.budget_bytes}")

    def _check_end(self) -> None:
        self.index = len(self.schedule.instructions)
        if self.held_bytes:
            self.hazard(f"{self.held_bytes} unused bytes are still held at the end")
        if missing := len(self.graph.tasks) - len(self.computed):
            self.hazard(f"{missing} tasks were never computed")
        self.host.check_end()
        for block, memory in zip(self.graph.blocks, self.memory, strict=True):
            if not block.is_external and memory.resident != (block.role in RESULT_ROLES):
                self.hazard(f"{block.name} is {'still held' if memory.resident else 'lost'} at the end")
            if block.index in self.graph.returned and not (memory.filled or block.host_location):
                self.hazard(f"{block.name} is returned to the caller, and is not held at the end")
            if block.index in self.averages and not memory.averaged:
                self.hazard(f"{block.name} was not averaged over all processes")
            self._check_unused(block.index, COMPUTE_STREAM, "handed to the caller")
        if self.peak_bytes != self.schedule.peak_bytes:
            self.hazard(f"holds {self.peak_bytes} bytes at most, not the stated {self.schedule.peak_bytes}")

    def hazard(self, hazard: str) -> None:
        raise InvalidSchedule(self.index, hazard)

    def _name(self, block: int) -> str:
        return repr(self.graph.blocks[block].name)

    def what(self, access: Access | None) -> str:
        if access is None:
            return "no instruction"
        instruction = self.schedule.instructions[access[1]]
        match instruction:
            case Compute(task):
                what = self.graph.tasks[task].name
            case AllReduce():
                what = "a mean over processes"
            case _:
                what = f"the {type(instruction).__name__.lower()}"
        return f"{what} (instruction {access[1]} on stream {access[0]})"


def _versions(graph: TaskGraph) -> list[tuple[int, ...]]:
    """Return for each task how many earlier tasks of the graph's order write each block that it reads and writes."""
    writes = [0] * len(graph.blocks)
    versions = []
    for task in graph.tasks:
        versions.append(tuple(writes[block] for block in (*task.reads, *task.writes)))
        for block in task.writes:
            writes[block] += 1
    return versions
