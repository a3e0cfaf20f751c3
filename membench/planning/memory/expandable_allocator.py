"""ExpandableAllocator: the caching allocator with PyTorch's option ``expandable_segments``."""

from membench.planning.memory.caching_allocator import (
    LARGE_SEGMENT_BYTES,
    UNIT_BYTES,
    CachingAllocator,
    Piece,
    PiecePool,
    rounded,
)

ADDRESSES_BYTES = LARGE_SEGMENT_BYTES * 2**26
"""Of the address range of one segment, whole pages. PyTorch's is 9/8 of the device's memory."""


class ExpandableAllocator(CachingAllocator):
    """Has one segment for each pool: a range of addresses, mapped to memory page by page.

    A page has `PiecePool.segment_bytes`. The segment grows at its end, or in gaps, by what a request lacks; unused
    memory is returned by whole pages wherever they lie.
    """

    def release_cached(self) -> None:
        for pool in self._pools.values():
            for piece in pool.free:
                self._unmap(piece)

    def _best_fit(self, pool: PiecePool, unit_bytes: int) -> Piece | None:
        """Return the smallest piece, where the room behind a piece that the segment may map counts as its own.

        As in PyTorch, the search goes up from the smallest and stops at the first piece with more room than the one
        before it.
        """
        best: Piece | None = None
        for piece in pool.free.at_least(unit_bytes):
            if best and _expandable_bytes(piece) >= _expandable_bytes(best):
                break
            best = piece
        return best

    def _is_split(self, piece: Piece, unit_bytes: int) -> bool:
        return piece.size_bytes - unit_bytes >= UNIT_BYTES

    def _grow(self, pool: PiecePool, size_bytes: int) -> Piece | None:
        piece = self._room(pool, size_bytes)
        while not piece.is_mapped or piece.size_bytes < size_bytes:
            gap = piece if not piece.is_mapped else piece.behind
            assert gap, "the room is large enough"
            has_bytes = piece.size_bytes if piece.is_mapped else 0
            mapped = self._map(gap, size_bytes - has_bytes)
            if mapped is None:
                return None
            piece = mapped
        pool.take(piece)
        return piece

    def _release_for(self, pool: PiecePool, unit_bytes: int) -> None:
        """PyTorch returns everything at once with this option."""

    def _room(self, pool: PiecePool, size_bytes: int) -> Piece:
        """Return the first of consecutive pieces that are free or have no memory yet, of a size in all."""
        for gap in sorted(pool.unmapped, key=lambda gap: gap.address):
            start = gap.before if gap.before and gap.before.is_free else gap
            room_bytes, piece = 0, start
            while room_bytes < size_bytes:
                room_bytes += piece.size_bytes
                if piece.behind is None or not piece.behind.is_free:
                    break
                piece = piece.behind
            if room_bytes >= size_bytes:
                return start
        segment = Piece(self._end, ADDRESSES_BYTES, pool, is_mapped=False)
        self._end += ADDRESSES_BYTES
        pool.add(segment)
        return segment

    def _map(self, gap: Piece, size_bytes: int) -> Piece | None:
        """Map the start of a gap, by whole pages; return the free piece of which it becomes a part."""
        mapped_bytes = min(gap.size_bytes, rounded(size_bytes, gap.pool.segment_bytes))
        if not self._takes_from_device(mapped_bytes):
            return None
        pool = gap.pool
        pool.take(gap)
        if mapped_bytes < gap.size_bytes:
            pool.add(gap.split(mapped_bytes))
        gap.is_mapped = True
        return pool.add(gap)

    def _unmap(self, piece: Piece) -> None:
        """Return the whole pages of a free piece to the device."""
        pool, page_bytes = piece.pool, piece.pool.segment_bytes
        start = rounded(piece.address, page_bytes)
        end = (piece.address + piece.size_bytes) // page_bytes * page_bytes
        if start >= end:
            return
        pool.take(piece)
        pages = piece
        if start > piece.address:
            pages = piece.split(start - piece.address)
            pool.add(piece)
        if pages.address + pages.size_bytes > end:
            pool.add(pages.split(end - start))
        pages.is_mapped = False
        pool.add(pages)
        self.reserved_bytes -= end - start


def _expandable_bytes(piece: Piece) -> int:
    behind = piece.behind
    return piece.size_bytes + (behind.size_bytes if behind and not behind.is_mapped else 0)
