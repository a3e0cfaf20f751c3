"""The arena: pieces never overlap, and an exact fit comes first."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.planning.pool import ALIGNMENT_BYTES, aligned
from membench.strategies.modnn.arena import Arena

UNIT = ALIGNMENT_BYTES


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9 * UNIT), st.integers(0, 1 << 30)), max_size=60))
def test_pieces_in_use_never_overlap_and_nothing_is_lost(steps: list[tuple[bool, int, int]]) -> None:
    capacity_bytes = 40 * UNIT
    arena = Arena(capacity_bytes)
    held: list[tuple[int, int]] = []
    for is_freed, size_bytes, choice in steps:
        if is_freed and held:
            arena.free(*held.pop(choice % len(held)))
        elif arena.first_without_room([size_bytes]) is None:
            held.append((arena.allocate(size_bytes), size_bytes))
        else:
            with pytest.raises(MemoryError):
                arena.allocate(size_bytes)
        addresses, size_bytes_of, is_free = arena.pieces()
        assert size_bytes_of.sum() == capacity_bytes
        assert addresses.tolist() == [0, *size_bytes_of.cumsum().tolist()[:-1]]
        in_use = set(zip(addresses[~is_free].tolist(), size_bytes_of[~is_free].tolist(), strict=True))
        assert in_use == {(address, aligned(size)) for address, size in held if size}
        assert not any(one and other for one, other in pairwise(is_free.tolist()))


def test_a_free_piece_of_exactly_the_size_comes_before_the_first_that_is_large_enough() -> None:
    arena = Arena(20 * UNIT)
    addresses = [arena.allocate(units * UNIT) for units in (3, 1, 2, 1)]
    arena.free(addresses[0], 3 * UNIT)
    arena.free(addresses[2], 2 * UNIT)
    assert arena.allocate(2 * UNIT) == addresses[2]
    assert arena.allocate(UNIT) == addresses[0]
    assert arena.held_bytes == 7 * UNIT


def test_several_sizes_have_room_only_together() -> None:
    arena = Arena(4 * UNIT)
    assert arena.first_without_room([2 * UNIT, UNIT, 2 * UNIT]) == 2
    assert arena.first_without_room([2 * UNIT, 2 * UNIT]) is None
    assert arena.held_bytes == 0
