"""Pools against a model that is too simple to be wrong."""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from membench.core.units import KIB, MIB
from membench.planning.pool import ALIGNMENT_BYTES, LARGEST_WASTE_BYTES, BestFitPool, FixedPool, allocated


@dataclass
class NaiveBestFit:
    """The same policy on a list of what is taken; looks at every gap for every request."""

    taken: dict[int, int] = field(default_factory=dict)  # address -> size
    extent_bytes: int = 0

    def gaps(self) -> list[tuple[int, int]]:
        """Return (size, address) of the room between what is taken, the room at the end included."""
        found, position = [], 0
        for address, size_bytes in [*sorted(self.taken.items()), (self.extent_bytes, 0)]:
            if address > position:
                found.append((address - position, position))
            position = address + size_bytes
        return found

    def allocate(self, size_bytes: int) -> int:
        size_bytes = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        fitting = [gap for gap in self.gaps() if gap[0] >= size_bytes]
        if fitting:
            gap_bytes, address = min(fitting)
            if gap_bytes < 2 * size_bytes and gap_bytes - size_bytes < LARGEST_WASTE_BYTES:
                size_bytes = gap_bytes
        else:
            address = max((start + size for start, size in self.taken.items()), default=0)
            self.extent_bytes = address + size_bytes
        self.taken[address] = size_bytes
        return address


SIZES = st.integers(1, 6 * ALIGNMENT_BYTES) | st.integers(1, 4).map(lambda n: n * 100 * MIB)
ALLOCATE = SIZES.map(lambda size_bytes: ("allocate", size_bytes))
FREE = st.integers(0, 50).map(lambda number: ("free", number))


@given(st.lists(ALLOCATE | FREE, max_size=60))
def test_best_fit_serves_what_the_naive_model_serves(actions: list[tuple[str, int]]) -> None:
    pool, model = BestFitPool(), NaiveBestFit()
    live: list[tuple[int, int]] = []  # address, requested size
    for action, number in actions:
        if action == "allocate":
            address = pool.allocate(number)
            assert address == model.allocate(number)
            assert all(address + number <= other or other + size <= address for other, size in live)
            live.append((address, number))
        elif live:
            address, size_bytes = live.pop(number % len(live))
            pool.free(address, size_bytes)
            del model.taken[address]
        assert pool.held_bytes == model.extent_bytes >= sum(size for _, size in live)


@given(st.lists(SIZES, min_size=1, max_size=20), st.randoms(use_true_random=False), st.data())
def test_when_all_is_freed_one_piece_is_left(sizes: list[int], random: Random, data: st.DataObject) -> None:
    pool = BestFitPool()
    pieces = [(pool.allocate(size_bytes), size_bytes) for size_bytes in sizes]
    random.shuffle(pieces)
    for address, size_bytes in pieces:
        pool.free(address, size_bytes)
    extent_bytes = pool.held_bytes
    assert pool.allocate(data.draw(st.integers(1, extent_bytes))) == 0
    assert pool.held_bytes == extent_bytes


def test_zero_bytes_take_no_room() -> None:
    pool = BestFitPool()
    pool.free(pool.allocate(0), 0)
    assert pool.held_bytes == 0


def test_a_piece_is_split_where_the_rest_is_large_enough() -> None:
    for size_bytes, rest_starts_at in (
        (512, 512),  # the rest is as large as the requested size
        (768, 1024),  # it is smaller: the whole piece is handed out
    ):
        pool = BestFitPool()
        pool.free(pool.allocate(1024), 1024)
        pool.allocate(size_bytes)
        assert pool.allocate(256) == rest_starts_at
    pool = BestFitPool()
    pool.free(pool.allocate(400 * MIB), 400 * MIB)
    pool.allocate(272 * MIB)  # a rest of 128 MiB is split off in any case
    assert pool.allocate(256) == 272 * MIB


@given(st.integers(0, 100), st.lists(st.integers(0, 40), max_size=8))
def test_a_fixed_pool_holds_its_size_and_more_only_while_it_must(stated: int, sizes: list[int]) -> None:
    pool = FixedPool(stated)
    for count, size_bytes in enumerate(sizes, start=1):
        pool.allocate(size_bytes)
        assert pool.held_bytes == max(stated, sum(sizes[:count]))
    for size_bytes in sizes:
        pool.free(0, size_bytes)
    assert pool.held_bytes == stated


def test_regions_double_and_pieces_do_not_merge_across_them() -> None:
    pool = BestFitPool(doubles_up_to_bytes=136 * MIB)
    first = pool.allocate(MIB)
    assert pool.held_bytes == MIB
    second = pool.allocate(MIB)  # the next region has 2 MiB, half of which is left
    assert pool.held_bytes == 3 * MIB
    pool.free(first, MIB)
    pool.free(second, MIB)
    pool.allocate(2 * MIB)
    assert pool.held_bytes == 3 * MIB
    pool.allocate(3 * MIB // 2)  # 1 MiB is free; the next region has 4
    assert pool.held_bytes == 7 * MIB
    pool.allocate(100 * MIB)
    assert pool.held_bytes == (7 + 128) * MIB
    pool.allocate(30 * MIB)  # does not fit what is left of the device: the pool grows by what it lacks
    assert pool.held_bytes == (7 + 128 + 30) * MIB


@given(st.lists(st.integers(1, 64 * MIB), max_size=30), st.integers(0, 4096))
def test_what_lies_in_doubling_regions_never_overlaps(sizes: list[int], limit_mib: int) -> None:
    pool = BestFitPool(doubles_up_to_bytes=limit_mib * MIB)
    taken = sorted((pool.allocate(size), size) for size in sizes)
    assert all(a + size <= b for (a, size), (b, _) in pairwise(taken))
    assert pool.held_bytes >= sum(sizes)
    for address, size in taken:
        pool.free(address, size)


@given(st.integers(0, 100 * MIB))
def test_large_allocations_are_whole_mebibytes(size_bytes: int) -> None:
    assert size_bytes <= allocated(size_bytes) < size_bytes + MIB
    assert allocated(size_bytes) % MIB == 0 if size_bytes > 512 * KIB else allocated(size_bytes) == size_bytes
