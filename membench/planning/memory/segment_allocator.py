"""SegmentAllocator: the caching allocator as PyTorch runs it by default."""

from membench.planning.memory.caching_allocator import (
    LARGE_SEGMENT_BYTES,
    SMALL_REQUEST_BYTES,
    UNIT_BYTES,
    CachingAllocator,
    Piece,
    PiecePool,
)


class SegmentAllocator(CachingAllocator):
    """Grows by segments, each from a ``cudaMalloc`` of its own, and returns only segments that are free as a whole.

    Args:
        capacity_bytes: the most that the device gives; None: any amount.
        max_split_bytes: pieces of at least this size are not split, and serve only requests of at least this size that
            leave less than `LARGE_SEGMENT_BYTES` of them; PyTorch's ``max_split_size_mb``. None: no limit.
    """

    def __init__(self, capacity_bytes: int | None = None, *, max_split_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes)
        self._max_split_bytes = max_split_bytes

    def release_cached(self) -> None:
        for pool in self._pools.values():
            for piece in pool.free:
                self._release(piece)

    def _best_fit(self, pool: PiecePool, unit_bytes: int) -> Piece | None:
        piece = next(pool.free.at_least(unit_bytes), None)
        if piece is None or self._max_split_bytes is None:
            return piece
        if unit_bytes < self._max_split_bytes:
            return piece if piece.size_bytes < self._max_split_bytes else None
        return piece if piece.size_bytes < unit_bytes + LARGE_SEGMENT_BYTES else None

    def _is_split(self, piece: Piece, unit_bytes: int) -> bool:
        rest_bytes = piece.size_bytes - unit_bytes
        if piece.pool.is_small:
            return rest_bytes >= UNIT_BYTES
        may_split = self._max_split_bytes is None or unit_bytes < self._max_split_bytes
        return may_split and rest_bytes > SMALL_REQUEST_BYTES

    def _grow(self, pool: PiecePool, size_bytes: int) -> Piece | None:
        if not self._takes_from_device(size_bytes):
            return None
        piece = Piece(self._end, size_bytes, pool)
        self._end += size_bytes
        return piece

    def _release_for(self, pool: PiecePool, unit_bytes: int) -> None:
        """Return pieces not to be split: the smallest of the request's size, or several from the largest on."""
        if self._max_split_bytes is None:
            return
        wanted_bytes = max(unit_bytes, self._max_split_bytes)
        if piece := next(pool.free.at_least(wanted_bytes), None):
            self._release(piece)
            return
        released_bytes = 0
        for piece in reversed(tuple(pool.free.at_least(self._max_split_bytes))):
            if released_bytes < wanted_bytes:
                released_bytes += self._release(piece)

    def _release(self, piece: Piece) -> int:
        """Return a free piece to the device if it is a whole segment; return how many bytes that are."""
        if piece.before or piece.behind:
            return 0
        piece.pool.take(piece)
        self.reserved_bytes -= piece.size_bytes
        return piece.size_bytes
