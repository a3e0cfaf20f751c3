"""Storages against MXNet's rule on a list, and what the rule implies."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from membench.strategies.memonger.storages import MATCH_RANGE, StoragePool


@dataclass
class NaiveStorages:
    """The same policy; looks at every free storage for every request."""

    sizes: dict[int, int] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)

    def allocate(self, size_bytes: int) -> int:
        free = sorted((size, storage) for storage, size in self.sizes.items() if storage not in self.taken)
        larger = [entry for entry in free if size_bytes <= entry[0] <= MATCH_RANGE * size_bytes]
        smaller = [entry for entry in free if size_bytes // MATCH_RANGE <= entry[0] < size_bytes]
        if larger:
            storage = larger[0][1]
        elif smaller:
            storage = smaller[-1][1]
        else:
            storage = len(self.sizes)
        self.sizes[storage] = max(self.sizes.get(storage, 0), size_bytes)
        self.taken.add(storage)
        return storage


ALLOCATE = st.integers(1, 2000).map(lambda size_bytes: ("allocate", size_bytes))
FREE = st.integers(0, 50).map(lambda number: ("free", number))


@given(st.lists(ALLOCATE | FREE, max_size=60))
def test_storages_are_those_of_the_naive_model(actions: list[tuple[str, int]]) -> None:
    pool, model = StoragePool(), NaiveStorages()
    live: list[tuple[int, int]] = []  # storage, requested size
    for action, number in actions:
        if action == "allocate":
            storage = pool.allocate(number)
            assert storage == model.allocate(number)
            live.append((storage, number))
        elif live:
            storage, size_bytes = live.pop(number % len(live))
            pool.free(storage, size_bytes)
            model.taken.discard(storage)
        assert pool.held_bytes == sum(model.sizes.values()) >= sum(size for _, size in live)


def test_a_storage_is_never_split() -> None:
    pool = StoragePool()
    pool.free(pool.allocate(1600), 1600)
    small, other = pool.allocate(100), pool.allocate(100)
    assert small != other
    assert pool.held_bytes == 1700


def test_a_storage_that_is_much_larger_is_left_alone() -> None:
    pool = StoragePool()
    pool.free(pool.allocate(1601), 1601)
    pool.allocate(100)
    assert pool.held_bytes == 1701


def test_a_storage_that_is_too_small_grows() -> None:
    pool = StoragePool()
    pool.free(pool.allocate(100), 100)
    pool.allocate(1600)
    assert pool.held_bytes == 1600


def test_zero_bytes_take_no_room() -> None:
    pool = StoragePool()
    pool.free(pool.allocate(0), 0)
    assert pool.held_bytes == 0
