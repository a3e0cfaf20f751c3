"""Offsets: where the blocks of a schedule lie in one pool of memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Offsets:
    """Where the blocks of a schedule lie in one pool.

    Attributes:
        addresses: for each block an address for each time that it becomes resident, in order.
        extent_bytes: size of the pool.
        used_bytes: the most that its blocks hold at a time; the rest of the extent is fragmentation.
    """

    addresses: dict[int, tuple[int, ...]]
    extent_bytes: int
    used_bytes: int

    @property
    def fragmentation(self) -> float:
        """Part of the pool that no block uses even at the worst moment."""
        return 1 - self.used_bytes / self.extent_bytes if self.extent_bytes else 0.0
