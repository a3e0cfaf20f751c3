"""Segments: splitting, and a device that is full."""

import pytest

from membench.core.errors import OutOfMemory
from membench.core.units import MIB
from membench.planning.memory.segment_allocator import SegmentAllocator


def test_a_rest_of_up_to_one_mib_is_not_split_off() -> None:
    """A request of 19 MiB takes a freed segment of 20 MiB whole; one of 19 MiB less 512 bytes leaves a free piece."""
    allocator = SegmentAllocator()
    allocator.free(allocator.allocate(20 * MIB))
    address = allocator.allocate(19 * MIB)
    assert allocator.allocated_bytes == 20 * MIB
    allocator.free(address)
    allocator.allocate(19 * MIB - 512)
    assert allocator.allocated_bytes == 19 * MIB - 512
    assert [piece.size_bytes for piece in allocator.pieces] == [19 * MIB - 512, MIB + 512]


def test_four_requests_of_five_mib_share_one_segment() -> None:
    allocator = SegmentAllocator()
    addresses = [allocator.allocate(5 * MIB) for _ in range(4)]
    assert addresses == [0, 5 * MIB, 10 * MIB, 15 * MIB]
    assert allocator.reserved_bytes == 20 * MIB
    allocator.allocate(5 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_a_full_device_gets_free_segments_back_before_a_request_fails() -> None:
    """40 MiB are free, but 60 of 100 are reserved for other sizes: 70 MiB fit once the two segments are returned."""
    allocator = SegmentAllocator(100 * MIB)
    for address in [allocator.allocate(20 * MIB), allocator.allocate(40 * MIB)]:
        allocator.free(address)
    allocator.allocate(70 * MIB)
    assert allocator.reserved_bytes == 70 * MIB
    with pytest.raises(OutOfMemory) as error:
        allocator.allocate(31 * MIB)
    assert error.value.needed_bytes == (70 + 32) * MIB
    assert error.value.capacity_bytes == 100 * MIB


def test_a_segment_in_use_in_part_is_not_returned() -> None:
    """Fragmentation: 30 of 40 MiB are free, and a request of 30 MiB does not fit a device of 60 all the same."""
    allocator = SegmentAllocator(60 * MIB)
    allocator.free(allocator.allocate(40 * MIB))
    lowest = allocator.allocate(5 * MIB)
    middle = allocator.allocate(5 * MIB)
    allocator.free(lowest)
    with pytest.raises(OutOfMemory):
        allocator.allocate(35 * MIB)
    allocator.free(middle)
    allocator.allocate(35 * MIB)
    assert allocator.reserved_bytes == 40 * MIB


def test_what_failed_leaves_the_rest_as_it_was() -> None:
    allocator = SegmentAllocator(30 * MIB)
    address = allocator.allocate(20 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.allocate(20 * MIB)
    allocator.free(address)
    allocator.allocate(30 * MIB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (30 * MIB, 30 * MIB)


def test_a_split_limit_keeps_large_pieces_whole() -> None:
    allocator = SegmentAllocator(max_split_bytes=32 * MIB)
    allocator.free(allocator.allocate(64 * MIB))
    allocator.allocate(20 * MIB)  # below the limit: not from the large piece
    assert allocator.reserved_bytes == 84 * MIB
    allocator.allocate(40 * MIB)  # would leave 24 MiB of it
    assert allocator.reserved_bytes == 124 * MIB
    allocator.allocate(50 * MIB)  # takes it whole
    assert allocator.reserved_bytes == 124 * MIB
    assert allocator.allocated_bytes == (20 + 40 + 64) * MIB


def test_with_a_split_limit_a_full_device_gets_no_more_back_than_is_needed() -> None:
    allocator = SegmentAllocator(300 * MIB, max_split_bytes=32 * MIB)
    for address in [allocator.allocate(size * MIB) for size in (40, 60, 100, 90)]:
        allocator.free(address)
    allocator.allocate(120 * MIB)  # the largest two are returned, and with them enough
    assert allocator.reserved_bytes == (40 + 60 + 120) * MIB
