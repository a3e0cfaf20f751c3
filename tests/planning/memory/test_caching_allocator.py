"""What holds for both ways in which the caching allocator grows, for any sequence of requests."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.units import KIB, MIB
from membench.planning.memory.caching_allocator import (
    LARGE_SEGMENT_BYTES,
    SMALL_SEGMENT_BYTES,
    UNIT_BYTES,
    CachingAllocator,
    rounded,
    segment_bytes,
)
from membench.planning.memory.expandable_allocator import ExpandableAllocator
from membench.planning.memory.segment_allocator import SegmentAllocator

SPLIT_LIMIT_BYTES = 16 * MIB
ALLOCATORS: list[Callable[[], CachingAllocator]] = [
    SegmentAllocator,
    ExpandableAllocator,
    lambda: SegmentAllocator(max_split_bytes=SPLIT_LIMIT_BYTES),
]
SIZES = (
    st.integers(1, 4 * UNIT_BYTES)
    | st.integers(1, 2 * MIB)
    | st.integers(MIB, 12 * MIB)
    | st.integers(10 * MIB, 90 * MIB)
)
ALLOCATE = st.tuples(st.just("allocate"), SIZES)
FREE = st.tuples(st.just("free"), st.integers(0, 100))
RELEASE = st.tuples(st.just("release"), st.just(0))
ACTIONS = st.lists(ALLOCATE | ALLOCATE | FREE | RELEASE, max_size=60)
every_allocator = pytest.mark.parametrize("make", ALLOCATORS, ids=["segments", "expandable", "split limit"])


def play(allocator: CachingAllocator, actions: list[tuple[str, int]], check: Callable[[str], None]) -> dict[int, int]:
    """Carry out actions, check after each, and return what is in use: sizes by address."""
    used: dict[int, int] = {}
    for action, number in actions:
        if action == "allocate":
            used[allocator.allocate(number)] = number
        elif action == "release":
            allocator.release_cached()
        elif used:
            address = list(used)[number % len(used)]
            del used[address]
            allocator.free(address)
        check(action)
    return used


@every_allocator
@given(actions=ACTIONS)
def test_pieces_never_overlap_and_hold_their_requests(
    make: Callable[[], CachingAllocator], actions: list[tuple[str, int]]
) -> None:
    allocator = make()

    def check(action: str) -> None:
        assert all(one.address + one.size_bytes <= two.address for one, two in pairwise(allocator.pieces))

    used = play(allocator, actions, check)
    in_use = {piece.address: piece.size_bytes for piece in allocator.pieces if not piece.is_free}
    assert in_use.keys() == used.keys()
    assert all(in_use[address] >= size_bytes for address, size_bytes in used.items())


@every_allocator
@given(actions=ACTIONS)
def test_the_three_counts_add_up(make: Callable[[], CachingAllocator], actions: list[tuple[str, int]]) -> None:
    allocator = make()

    def check(action: str) -> None:
        pieces = allocator.pieces
        assert allocator.reserved_bytes == sum(piece.size_bytes for piece in pieces)
        assert allocator.allocated_bytes == sum(p.size_bytes for p in pieces if not p.is_free)
        assert allocator.requested_bytes <= allocator.allocated_bytes <= allocator.reserved_bytes

    used = play(allocator, actions, check)
    assert allocator.requested_bytes == sum(used.values())
    assert allocator.allocated_bytes >= sum(rounded(size_bytes, UNIT_BYTES) for size_bytes in used.values())


@every_allocator
@given(actions=ACTIONS)
def test_reserved_memory_shrinks_only_when_it_is_released(
    make: Callable[[], CachingAllocator], actions: list[tuple[str, int]]
) -> None:
    allocator, before = make(), [0]

    def check(action: str) -> None:
        assert action == "release" or allocator.reserved_bytes >= before[0]
        assert action != "free" or allocator.reserved_bytes == before[0]
        before[0] = allocator.reserved_bytes

    play(allocator, actions, check)


@every_allocator
@given(actions=ACTIONS)
def test_free_neighbours_are_merged(make: Callable[[], CachingAllocator], actions: list[tuple[str, int]]) -> None:
    allocator = make()

    def check(action: str) -> None:
        for piece in allocator.pieces:
            behind = piece.behind
            assert not (behind and piece.is_free and behind.is_free and behind.is_mapped)

    used = play(allocator, actions, check)
    for address in used:
        allocator.free(address)
    for piece in allocator.pieces:  # each segment is one piece; of an expandable one, the rest has no memory
        assert piece.is_free
        assert all(not each.is_mapped for each in (piece.before, piece.behind) if each)
    allocator.release_cached()
    assert allocator.reserved_bytes == allocator.allocated_bytes == 0
    assert not allocator.pieces


@every_allocator
@given(actions=ACTIONS, size_bytes=SIZES)
def test_it_grows_only_if_no_free_piece_is_large_enough(
    make: Callable[[], CachingAllocator], actions: list[tuple[str, int]], size_bytes: int
) -> None:
    allocator = make()
    play(allocator, actions, lambda action: None)
    needed_bytes, is_small = rounded(size_bytes, UNIT_BYTES), segment_bytes(size_bytes) == SMALL_SEGMENT_BYTES
    fitting = [
        (piece.size_bytes, piece.address)
        for piece in allocator.pieces
        if piece.is_free and piece.pool.is_small == is_small and piece.size_bytes >= needed_bytes
    ]
    before_bytes = allocator.reserved_bytes
    address = allocator.allocate(size_bytes)
    if not fitting:
        assert allocator.reserved_bytes > before_bytes
    elif isinstance(allocator, ExpandableAllocator):
        assert address in {found for _, found in fitting}
    elif allocator.reserved_bytes == before_bytes:
        assert min(fitting)[1] == address
    else:
        assert max(fitting)[0] >= SPLIT_LIMIT_BYTES


@pytest.mark.parametrize(
    ("size_bytes", "expected_bytes"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + UNIT_BYTES, 20 * MIB),
        (10 * MIB - UNIT_BYTES, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + UNIT_BYTES, 12 * MIB),
        (101 * MIB, 102 * MIB),
    ],
)
def test_a_request_takes_a_segment_of_the_documented_size(size_bytes: int, expected_bytes: int) -> None:
    allocator = SegmentAllocator()
    allocator.allocate(size_bytes)
    assert allocator.reserved_bytes == expected_bytes


def test_a_small_request_takes_whole_units() -> None:
    allocator = SegmentAllocator()
    first, second = allocator.allocate(1), allocator.allocate(513)
    assert (first, second) == (0, 512)
    assert (allocator.requested_bytes, allocator.allocated_bytes) == (514, 512 + 1024)
    assert allocator.reserved_bytes == SMALL_SEGMENT_BYTES


def test_streams_do_not_share_free_memory() -> None:
    allocator = SegmentAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    allocator.allocate(30 * MIB, stream="copy")
    assert allocator.reserved_bytes == 60 * MIB
    allocator.allocate(30 * MIB)
    assert allocator.reserved_bytes == 60 * MIB


def test_the_smaller_of_two_large_segments_does_not_serve_a_larger_request() -> None:
    """Two freed segments of 30 and 40 MiB do not join: a request of 50 MiB reserves 50 more."""
    allocator = SegmentAllocator()
    for address in [allocator.allocate(30 * MIB), allocator.allocate(40 * MIB)]:
        allocator.free(address)
    allocator.allocate(50 * MIB)
    assert allocator.reserved_bytes == 120 * MIB


def test_an_expandable_segment_grows_by_what_a_request_lacks() -> None:
    """Freed neighbours of 30 and 40 MiB lie in 80 MiB of pages, and serve 50 MiB and then 25, without growth."""
    allocator = ExpandableAllocator()
    addresses = [allocator.allocate(30 * MIB), allocator.allocate(40 * MIB)]
    assert allocator.reserved_bytes == 4 * LARGE_SEGMENT_BYTES
    for address in addresses:
        allocator.free(address)
    allocator.allocate(50 * MIB)
    allocator.allocate(25 * MIB)
    assert allocator.reserved_bytes == 80 * MIB
    allocator.allocate(10 * MIB)  # 5 are left: one more page
    assert allocator.reserved_bytes == 100 * MIB


def test_expandable_segments_return_whole_pages_and_use_the_gaps_first() -> None:
    allocator = ExpandableAllocator()
    first, middle, last = (allocator.allocate(size * MIB) for size in (30, 60, 30))
    allocator.free(middle)  # from 30 to 90 MiB; the pages from 40 to 80 are free as a whole
    allocator.release_cached()
    assert allocator.reserved_bytes == 80 * MIB
    assert allocator.allocate(45 * MIB) == middle  # maps 40 MiB between the two rests
    assert allocator.reserved_bytes == 120 * MIB
    for address in (first, middle, last):
        allocator.free(address)
    assert [piece.size_bytes for piece in allocator.pieces] == [120 * MIB]


def test_small_page_is_two_mib() -> None:
    allocator = ExpandableAllocator()
    for _ in range(3):
        allocator.allocate(700 * KIB)
    assert allocator.reserved_bytes == 2 * SMALL_SEGMENT_BYTES
