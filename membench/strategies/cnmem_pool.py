"""NVIDIA's cnmem: the pool of vDNN's prototype, as large as the device's memory (Rhu et al., Section 3.2)."""

from membench.planning.pool import BestFitPool


class CnmemPool(BestFitPool):
    """One allocation, made once, from which the smallest free piece that is large enough is served.

    A larger piece is always split at its lower end, and neighbours merge when they are free (NVIDIA/cnmem,
    ``src/cnmem.cpp``; its unit is 512 bytes). Counts what is used, and where no piece is large enough although as much
    is free, the size that would be.

    Args:
        size_bytes: size of the pool.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__()
        self._size_bytes = self._extent_bytes = size_bytes
        self._used_bytes = 0
        self._is_fragmented = False
        self._insert(0, size_bytes)

    @property
    def held_bytes(self) -> int:
        return self._extent_bytes if self._is_fragmented else self._used_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Size of the largest free piece."""
        return self._by_size[-1][0] if self._by_size else 0

    def allocate(self, size_bytes: int) -> int:
        extent_bytes = self._extent_bytes
        address = super().allocate(size_bytes)
        self._used_bytes += size_bytes
        self._is_fragmented |= self._extent_bytes > extent_bytes and self._used_bytes <= self._size_bytes
        return address

    def free(self, address: int, size_bytes: int) -> None:
        super().free(address, size_bytes)
        self._used_bytes -= size_bytes

    def _splits(self, size_bytes: int, rest_bytes: int) -> bool:
        return rest_bytes > 0
