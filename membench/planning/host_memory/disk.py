"""Host memory as a cache of the disk, whose future is known: a pass over finished schedules.

    before the step   as many blocks as host memory has no room for have their home on the disk
    Load              as early as there is room, in the order of use
    Store             after the last write; of a block that is used again, where its room is needed
    Drop              where room is needed: first what is not used again, then what is used last (Belady, A study of
                      replacement algorithms for a virtual-storage computer, 1966)

States are moved to the disk first, because a step uses each of them once, then weights, then accumulated gradients; of
each kind as many as needed, evenly over the step, so that the disk works throughout. Two instructions' worth of room is
kept for what visits, so that a block is loaded while the one before it is used. Copies of activations also leave host
memory when their last use is over and, if there is no other way, for the disk.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import (
    Compute,
    Instruction,
    Offload,
    Prefetch,
    RepeatedSchedule,
    Reserve,
    Reuse,
    Schedule,
    Store,
    Work,
)
from membench.core.graph.task_graph import HostLocation, Role
from membench.core.hardware.machine import HostLimit
from membench.core.units import format_bytes
from membench.planning.host_memory.disk_instructions import DiskInstructions
from membench.planning.host_memory.host_places import PAGE_BYTES
from membench.planning.host_memory.host_uses import HostUses
from membench.planning.memory.liveness import host_live_bytes

LEAST_BYTES = PAGE_BYTES
"""Smaller blocks stay in host memory."""

Runs = tuple[RepeatedSchedule, ...]


def keep_within(runs: Runs, limit: HostLimit) -> Runs:
    """Return a step's schedules with homes moved to the disk and buffers dropped, if it needs more host memory.

    Args:
        runs: validated.

    Raises:
        InfeasibleSchedule: what one instruction uses needs more host memory, the error contains how much; or the disk
            has not enough for the rest.
    """
    schedules = [run.schedule for run in runs]
    most_bytes = max(max(host_live_bytes(schedule), default=0) for schedule in schedules)
    if most_bytes <= limit.memory_bytes:
        return runs
    steps = [HostUses(schedule) for schedule in schedules]
    chosen = _chosen(steps, limit)
    found = tuple(
        replace(run, schedule=_DiskInstructions(step, chosen, limit.memory_bytes).schedule())
        for run, step in zip(runs, steps, strict=True)
    )
    stored_bytes = max(on_disk_bytes(run.schedule) for run in found)
    if limit.disk_bytes is not None and stored_bytes > limit.disk_bytes:
        raise InfeasibleSchedule(
            task=f"a step without the {format_bytes(stored_bytes)} of disk that the machine lacks",
            needed_bytes=most_bytes,
            budget_bytes=limit.memory_bytes,
            lower_bound_bytes=most_bytes,
            on_host=True,
            ranks=limit.ranks,
        )
    return found


def on_disk_bytes(schedule: Schedule) -> int:
    """Return the bytes of blocks that are on the disk at any time."""
    homes = {block.index for block in schedule.graph.blocks if block.is_on_disk}
    visitors = {item.block for item in schedule.instructions if isinstance(item, Store)}
    return schedule.graph.size_bytes(homes | visitors)


# ---- homes on the disk ----------------------------------------------------------------------------------------------


def _chosen(steps: Sequence[HostUses], limit: HostLimit) -> frozenset[str]:
    """Return the names of the blocks that have their home on the disk, the same ones in all schedules of the step."""
    last = steps[-1]  # with the update
    blocks = last.schedule.graph.blocks
    roles = limit.on_disk
    _check_feasible(steps, limit)
    homes_bytes = sum(block.size_bytes for block in last.homes)
    visiting_bytes = max(_visiting_bytes(step, roles) for step in steps)
    excess_bytes = homes_bytes + visiting_bytes - limit.memory_bytes
    chosen: list[int] = []
    for role in roles:
        sizes = {block: blocks[block].size_bytes for block in last.movable(role, LEAST_BYTES)}
        found = _spread(sizes, excess_bytes)
        chosen += found
        excess_bytes -= sum(sizes[block] for block in found)
    return frozenset(blocks[block].name for block in chosen)


def _visiting_bytes(step: HostUses, roles: Iterable[Role]) -> int:
    """Return the room for what two instructions that follow one another use, beside copies without a home."""
    movable = {block for role in roles for block in step.movable(role, LEAST_BYTES)}
    size_bytes = step.schedule.graph.size_bytes
    used = [size_bytes(movable.intersection(step.at[at])) for at in sorted(step.at)]
    pairs = [first + second for first, second in pairwise(filter(None, used))]
    return max(pairs, default=max(used, default=0)) + int(step.buffered_bytes().max(initial=0))


def _spread(sizes_bytes: Mapping[int, int], wanted_bytes: int) -> list[int]:
    """Return blocks of at least so many bytes, or all, evenly over the order in which they are given."""
    total_bytes = sum(sizes_bytes.values())
    share = min(1.0, wanted_bytes / total_bytes) if total_bytes else 0.0
    chosen, passed_bytes, chosen_bytes = [], 0, 0
    for block, size_bytes in sizes_bytes.items():
        passed_bytes += size_bytes
        if chosen_bytes < passed_bytes * share:
            chosen.append(block)
            chosen_bytes += size_bytes
    return chosen


def _check_feasible(steps: Iterable[HostUses], limit: HostLimit) -> None:
    """Refuse a limit below what stays in host memory and what one instruction uses in addition.

    Raises:
        InfeasibleSchedule: see `keep_within`.
    """
    worst = 0, "the caller's blocks"
    for step in steps:
        graph = step.schedule.graph
        movable = {block for role in limit.on_disk for block in step.movable(role, LEAST_BYTES)}
        staying = {block.index for block in step.homes} - movable
        staying_bytes = graph.size_bytes(staying)
        for position, used in step.at.items():
            needed_bytes = staying_bytes + graph.size_bytes(
                {b for b in used if b in movable or not graph.blocks[b].host_location}
            )
            worst = max(worst, (needed_bytes, _described(step.schedule, position)))
        worst = max(worst, (staying_bytes, "what cannot leave host memory"))
    if worst[0] > limit.memory_bytes:
        raise InfeasibleSchedule(
            task=worst[1],
            needed_bytes=worst[0],
            budget_bytes=limit.memory_bytes,
            lower_bound_bytes=worst[0],
            on_host=True,
            ranks=limit.ranks,
        )


def _described(schedule: Schedule, position: int) -> str:
    match schedule.instructions[position]:
        case Compute(task):
            return schedule.graph.tasks[task].name
        case Offload(block) | Prefetch(block) as copy:
            return f"the {type(copy).__name__.lower()} of {schedule.graph.blocks[block].name}"
        case instruction:
            return type(instruction).__name__.lower()


# ---- instructions ---------------------------------------------------------------------------------------------------


class _DiskInstructions:
    """One schedule's instructions with those of the disk between them.

    Args:
        uses: uses in the schedule before.
        moved: names of the blocks whose home is the disk.
    """

    def __init__(self, uses: HostUses, moved: Collection[str], limit_bytes: int) -> None:
        self._before = uses.schedule
        chosen = {block.index for block in uses.homes if block.name in moved}
        self._blocks = [
            replace(block, host_location=HostLocation(block.index, on_disk=True)) if block.index in chosen else block
            for block in uses.schedule.graph.blocks
        ]
        staying = (block.size_bytes for block in uses.homes if block.index not in chosen)
        self._room_bytes = limit_bytes - sum(staying)
        self._visitors = {
            block: list(reversed(of_block))
            for block, of_block in uses.of_block.items()
            if block in chosen or not self._blocks[block].host_location
        }  # uses to come, the next one last
        self._at = {at: [b for b in used if b in self._visitors] for at, used in uses.at.items()}
        self._buffered_bytes = uses.buffered_bytes()
        self._open: set[int] = set()
        self._open_bytes = self._homes_bytes = 0  # of all buffers, and of those whose home is the disk
        self._dead: dict[int, None] = {}  # open, and not used again; in the order in which they died
        self._changed: set[int] = set()  # in host memory, since they were on the disk
        self._loads: list[tuple[int, int]] = []  # (next use, block) of what is on the disk and will be used; a heap
        self._issued = DiskInstructions()
        for block in sorted(chosen & self._visitors.keys()):
            self._expect(block)

    def schedule(self) -> Schedule:
        """Return the schedule with the disk's instructions."""
        self._load_ahead(-1)
        for unit in _units(self._before.instructions):
            for block in self._at.get(unit[-1], ()):
                self._make_room_for(block, unit[-1])
            for position in unit:
                self._keep(position)
            self._load_ahead(unit[-1])
        for block in sorted(self._open):
            if self._blocks[block].is_on_disk:
                self._drop(block)
        self._issued.finish()
        graph = replace(self._before.graph, blocks=tuple(self._blocks))
        return replace(self._before, graph=graph, instructions=tuple(self._issued.instructions))

    def _keep(self, position: int) -> None:
        """Add an instruction of the schedule, behind what it uses."""
        used = self._at.get(position, ())
        for block in used:
            use = self._visitors[block].pop()
            self._dead.pop(block, None)
            self._issued.use(block, use.stream, writes=use.writes)
            if use.writes:
                self._changed.add(block)
        self._issued.keep(self._before.instructions[position])
        for block in used:
            if not self._is_used_again(block):
                if self._blocks[block].is_on_disk and block in self._changed:
                    self._store(block)
                self._dead[block] = None

    # ---- room ---------------------------------------------------------------------------------------

    def _make_room_for(self, block: int, position: int) -> None:
        """Give a block that the instruction at a position uses its buffer, and load it if that reads it."""
        if block in self._open:
            return
        size_bytes = self._blocks[block].size_bytes
        while self._open_bytes + size_bytes > self._room_bytes:
            leaving = (b for b in self._leaving(position) if b not in self._at[position])
            self._drop(next(leaving))
        if self._visitors[block][-1].reads:
            self._load(block)
        else:
            self._issued.open_buffer(self._visitors[block][-1].stream)
            self._take(block)

    def _load_ahead(self, position: int) -> None:
        """Load what is used next, as far as there is room until then."""
        while self._loads:
            use, block = self._loads[0]
            if block in self._open or use != self._next_use(block):
                heappop(self._loads)
                continue
            leaving = self._in_place_of(block, position, use)
            if leaving is None:
                return
            for other in leaving:
                self._drop(other)
            self._load(block)

    def _in_place_of(self, block: int, position: int, use: int) -> list[int] | None:
        """Return blocks that leave for one loaded here and used later, None where there is no room until then."""
        size_bytes = self._blocks[block].size_bytes
        buffered_bytes = int(self._buffered_bytes[max(0, position) : use + 1].max())
        open_bytes, homes_bytes = self._open_bytes, self._homes_bytes
        leaving: list[int] = []
        for other in (*self._leaving(use), None):
            if size_bytes + max(open_bytes, homes_bytes + buffered_bytes) <= self._room_bytes:
                return leaving
            if other is not None:
                leaving.append(other)
                open_bytes -= self._blocks[other].size_bytes
                homes_bytes -= self._blocks[other].size_bytes if self._blocks[other].is_on_disk else 0
        return None

    def _leaving(self, use: int) -> list[int]:
        """Return open blocks that may leave for one that is used at a position, in the order in which they would."""
        later = (b for b in self._open if b not in self._dead and self._next_use(b) > use)
        return [*self._dead, *sorted(later, key=self._next_use, reverse=True)]

    def _next_use(self, block: int) -> int:
        uses = self._visitors[block]
        return uses[-1].position if uses else len(self._before)

    def _is_used_again(self, block: int) -> bool:
        """Return whether what a block's copy contains is read again in host memory."""
        uses = self._visitors[block]
        return bool(uses) and uses[-1].reads

    def _take(self, block: int) -> None:
        self._open.add(block)
        self._open_bytes += self._blocks[block].size_bytes
        self._homes_bytes += self._blocks[block].size_bytes if self._blocks[block].is_on_disk else 0

    # ---- instructions of the disk -------------------------------------------------------------------

    def _load(self, block: int) -> None:
        self._issued.load(block)
        self._take(block)

    def _store(self, block: int) -> None:
        self._issued.store(block)
        self._changed.discard(block)

    def _drop(self, block: int) -> None:
        """Close a block's buffer, after it is on the disk if that is needed."""
        is_needed = self._is_used_again(block) or (self._blocks[block].is_on_disk and not self._visitors[block])
        if is_needed and block in self._changed:
            self._store(block)
        self._issued.drop(block)
        self._open.discard(block)
        self._dead.pop(block, None)
        self._open_bytes -= self._blocks[block].size_bytes
        self._homes_bytes -= self._blocks[block].size_bytes if self._blocks[block].is_on_disk else 0
        self._expect(block)

    def _expect(self, block: int) -> None:
        """Note when a block on the disk is used again."""
        if self._is_used_again(block):
            heappush(self._loads, (self._next_use(block), block))


def _units(instructions: Sequence[Instruction]) -> Iterator[list[int]]:
    """Yield positions in order: those of a space that is opened with the work that fills it, others alone."""
    unit: list[int] = []
    is_filled = True
    for position, instruction in enumerate(instructions):
        is_filled = isinstance(instruction, Work) or (is_filled and not isinstance(instruction, Reserve | Reuse))
        unit.append(position)
        if is_filled:
            yield unit
            unit = []
    if unit:
        yield unit
