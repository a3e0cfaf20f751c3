"""Accesses to host memory by a finished schedule: what the future of a cache of the disk consists of."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from membench.core.graph.schedule import COMPUTE_STREAM, Compute, Instruction, Offload, Prefetch, Schedule
from membench.core.graph.task_graph import Block, Role


@dataclass(frozen=True, slots=True)
class HostUse:
    """An instruction's access to a block in host memory."""

    position: int
    stream: str
    reads: bool  # what was there before
    writes: bool


class HostUses:
    """A schedule's accesses to host memory.

    Attributes:
        of_block: by block, in order.
        at: the blocks that an instruction accesses, by its position.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.of_block: defaultdict[int, list[HostUse]] = defaultdict(list)
        self.at: dict[int, tuple[int, ...]] = {}
        for position, instruction in enumerate(schedule.instructions):
            for block, reads, writes in self._accesses(instruction):
                stream = getattr(instruction, "stream", COMPUTE_STREAM)
                self.of_block[block].append(HostUse(position, stream, reads, writes))
                self.at[position] = (*self.at.get(position, ()), block)

    def _accesses(self, instruction: Instruction) -> Iterator[tuple[int, bool, bool]]:
        match instruction:
            case Offload(block):
                yield block, False, True
            case Prefetch(block):
                yield block, True, False
            case Compute(task) if self.schedule.graph.tasks[task].on_host:
                described = self.schedule.graph.tasks[task]
                for block in dict.fromkeys((*described.reads, *described.writes)):
                    yield block, True, block in described.writes

    @property
    def homes(self) -> list[Block]:
        """The blocks whose home is host memory, parts of others excepted."""
        return [block for block in self.schedule.graph.blocks if block.host_location and not block.is_part]

    def movable(self, role: Role, least_bytes: int) -> list[int]:
        """Return the homes of a role that may move to the disk, of so many bytes each, by their first use."""
        blocks = self.schedule.graph.blocks
        whole = {block.host_location.block for block in blocks if block.host_location and block.is_part}
        found = (
            block.index
            for block in self.homes
            if block.role is role and block.index not in whole and block.size_bytes >= least_bytes
        )
        return sorted(found, key=lambda block: (self._first_use(block), block))

    def _first_use(self, block: int) -> int:
        uses = self.of_block.get(block)
        return uses[0].position if uses else len(self.schedule)

    def buffered_bytes(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Return by position the bytes of copies that have no home in host memory and are used here or later."""
        changes = np.zeros(len(self.schedule) + 1, np.int64)
        for block, uses in self.of_block.items():
            described = self.schedule.graph.blocks[block]
            if described.host_location:
                continue
            for start, end in _lives(uses):
                changes[start] += described.size_bytes
                changes[end + 1] -= described.size_bytes
        return np.cumsum(changes)


def _lives(uses: Sequence[HostUse]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last position of each stretch in which a copy has contents that are used."""
    start, last = uses[0].position, uses[0].position
    for use in uses[1:]:
        if not use.reads:
            yield start, last
            start = use.position
        last = use.position
    yield start, last
