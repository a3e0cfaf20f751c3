"""Simulated device memory with a clock: addresses of blocks, copies on the host, and when each copy is done.

moDNN plans by such a simulation (Algorithm 1). Each decision changes the memory, advances two clocks, one of computing
and one of copying, and appends to the list of moves from which the schedule is built.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf

import numpy as np
from numpy.typing import NDArray

from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.pool import aligned
from membench.strategies.modnn.arena import Arena
from membench.strategies.modnn.eviction import Neighbours, best_scheme

MayEvict = Callable[[NDArray[np.int64]], NDArray[np.bool_]]
"""Which of these blocks may be evicted."""


class Move(Enum):
    """A change of where a block is kept."""

    OFFLOAD = auto()
    FREE = auto()
    PREFETCH = auto()


@dataclass(frozen=True, slots=True)
class Room:
    """Blocks that have to be evicted to make room.

    Attributes:
        evicted: in the order in which they are copied.
        at_s: when all of them are on the host, and those that are needed have been prefetched again.
    """

    evicted: tuple[int, ...]
    at_s: float


class ClockedMemory:
    """Blocks in one arena, and the time.

    Args:
        capacity_bytes: the pool's capacity; None: unlimited.

    Attributes:
        compute_s: when the next task could start.
        copy_s: when the copy stream has finished all copies issued so far.
        moves: decisions since the last `take_moves`.
    """

    def __init__(self, graph: TaskGraph, cost: CostModel, capacity_bytes: int | None) -> None:
        self.arena = Arena(capacity_bytes)
        self.compute_s = self.copy_s = 0.0
        self.moves: list[tuple[Move, int]] = []
        self._size_bytes = [block.size_bytes for block in graph.blocks]
        self._sizes = np.array(self._size_bytes)
        self._offload_time_s = np.array([cost.offload_time_s(size_bytes) for size_bytes in self._size_bytes])
        self._cost = cost
        self._last_task_s = 0.0  # end of the last task: memory is taken at its position
        self._address = np.full(len(graph.blocks), -1)  # of resident blocks
        self._ready_s = np.zeros(len(graph.blocks))
        self._on_host_s = np.array([0.0 if block.host_location else inf for block in graph.blocks])

    # ---- state --------------------------------------------------------------------------------------

    def is_resident(self, block: int) -> bool:
        return self._address.item(block) >= 0

    def ready_s(self, blocks: Iterable[int]) -> float:
        """Return when a task that reads these blocks could start."""
        return max((self.compute_s, *map(self._ready_s.item, blocks)))

    def on_host_s(self, block: int) -> float:
        """Return when the copy to the host is done; infinity where there is none."""
        return self._on_host_s.item(block)

    def prefetch_time_s(self, blocks: Iterable[int]) -> float:
        return sum(self._cost.prefetch_time_s(self._size_bytes[block]) for block in blocks)

    def sizes(self, blocks: Iterable[int]) -> list[int]:
        return [self._size_bytes[block] for block in blocks]

    # ---- moves and tasks ----------------------------------------------------------------------------

    def offload(self, block: int) -> None:
        """Start a copy to the host as early as the block and the copy stream allow, which may be in the past."""
        self.copy_s = max(self.copy_s, self._ready_s.item(block)) + self._offload_time_s.item(block)
        self._on_host_s[block] = self.copy_s
        self.moves.append((Move.OFFLOAD, block))

    def free(self, block: int) -> None:
        """Give a block's memory back once its copy to the host is done."""
        self.compute_s = max(self.compute_s, self.on_host_s(block))
        self.moves.append((Move.FREE, block))
        self._release(block)

    def evict(self, block: int) -> None:
        """Free a block, after a copy to the host unless there is one."""
        if self.on_host_s(block) == inf:
            self.offload(block)
        self.free(block)

    def prefetch(self, block: int) -> None:
        self.copy_s = max(self.copy_s, self._last_task_s)
        self.copy_s += self._cost.prefetch_time_s(self._size_bytes[block])
        self._allocate(block, self.copy_s)
        self.moves.append((Move.PREFETCH, block))

    def run(self, reads: Iterable[int], creates: Iterable[int], changes: Iterable[int], time_s: float) -> None:
        """Run a task on resident blocks.

        Args:
            changes: blocks of `reads` that it writes; their copies on the host are invalid afterwards.
        """
        copied_s = map(self._copied_s, changes)
        self.compute_s = self._last_task_s = max(self.ready_s(reads), *copied_s, 0.0) + time_s
        for block in creates:
            self._allocate(block, self.compute_s)
        for block in changes:
            self._on_host_s[block] = inf
            self._ready_s[block] = self.compute_s

    def drop(self, block: int) -> None:
        """Give back the memory of a block that no later task touches."""
        self.compute_s = max(self.compute_s, self._copied_s(block))
        self._on_host_s[block] = inf
        self._release(block)

    def take_moves(self) -> tuple[tuple[Move, int], ...]:
        moves, self.moves = tuple(self.moves), []
        return moves

    def _copied_s(self, block: int) -> float:
        """Return when a copy of the block to the host is done; 0 where there is none."""
        at_s = self.on_host_s(block)
        return 0.0 if at_s == inf else at_s

    def _release(self, block: int) -> None:
        self.arena.free(self._address.item(block), self._size_bytes[block])
        self._address[block] = -1

    def _allocate(self, block: int, ready_s: float) -> None:
        self._address[block] = self.arena.allocate(self._size_bytes[block])
        self._ready_s[block] = ready_s

    # ---- offloading schemes -------------------------------------------------------------------------

    def find_room(self, sizes_bytes: Sequence[int], may_evict: MayEvict) -> Room | None:
        """Return which blocks to evict so that these sizes, served one after another, all have room (moDNN 5.2.1).

        For each size in turn: of all ranges of neighbouring pieces that would be large enough, the one whose copies are
        done first; among equals the one with fewest bytes. None where there is no such range.
        """
        evicted: list[int] = []
        copy_free_s, at_s = self.copy_s, 0.0
        while (position := self.arena.first_without_room(sizes_bytes)) is not None:
            before = [(self.arena.allocate(size), size) for size in sizes_bytes[:position]]
            needed_bytes = aligned(sizes_bytes[position])
            blocks, neighbours = self._neighbours(may_evict, evicted)
            scheme = best_scheme(neighbours, needed_bytes, compute_s=self.compute_s, copy_free_s=copy_free_s)
            for address, size_bytes in reversed(before):
                self.arena.free(address, size_bytes)
            if scheme is None:
                break
            chosen = [block for block in blocks[scheme.first : scheme.end].tolist() if block >= 0]
            for block in chosen:
                self.arena.free(self._address.item(block), self._size_bytes[block])
            evicted += chosen
            copy_free_s, at_s = scheme.copy_free_s, max(at_s, scheme.at_s)
        for block in evicted:
            self.arena.allocate_at(self._address.item(block), self._size_bytes[block])
        return None if position is not None else Room(tuple(evicted), at_s)

    def defragment(self, needed: Iterable[int]) -> Room:
        """Return how to empty the pool: evict everything and prefetch what a task needs (moDNN 5.2.1)."""
        resident = self._resident()
        evicted = resident[np.argsort(self._address[resident])]
        times_s = np.column_stack((self._on_host_s, self._ready_s, self._offload_time_s))[evicted]
        copy_free_s, at_s = self.copy_s, 0.0
        for done_s, ready_s, offload_time_s in times_s.tolist():
            if done_s == inf:
                done_s = copy_free_s = max(copy_free_s, ready_s) + offload_time_s
            at_s = max(at_s, done_s)
        back_s = max(copy_free_s, self._last_task_s) + self.prefetch_time_s(needed)
        return Room(tuple(evicted.tolist()), max(at_s, back_s))

    def _resident(self, gone: Sequence[int] = ()) -> NDArray[np.int64]:
        """Return the resident blocks that are not empty, without those whose memory is given away already."""
        is_resident = (self._address >= 0) & (self._sizes > 0)
        is_resident[list(gone)] = False
        return np.flatnonzero(is_resident)

    def _neighbours(self, may_evict: MayEvict, gone: list[int]) -> tuple[NDArray[np.int64], Neighbours]:
        """Return for each piece the block that it could evict, or -1, and the cost of that; see `_resident`."""
        addresses, size_bytes, is_free = self.arena.pieces()
        blocks = self._resident(gone)
        held = np.full(len(addresses), -1)
        held[np.searchsorted(addresses, self._address[blocks])] = blocks
        is_evicted = (held >= 0) & may_evict(held)
        on_host_s = self._on_host_s[held]
        return np.where(is_evicted, held, -1), Neighbours(
            size_bytes=size_bytes,
            stays=~(is_free | is_evicted),
            evicted_bytes=np.where(is_evicted, self._sizes[held], 0),
            is_copied=is_evicted & np.isinf(on_host_s),
            ready_s=self._ready_s[held],
            offload_time_s=self._offload_time_s[held],
            on_host_s=np.where(is_evicted & np.isfinite(on_host_s), on_host_s, 0.0),
        )
