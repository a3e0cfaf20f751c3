"""cnmem's pool: best fit, always split, a fixed size."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from membench.planning.pool import ALIGNMENT_BYTES
from membench.strategies.cnmem_pool import CnmemPool

UNIT = ALIGNMENT_BYTES
POOL_BYTES = 64 * UNIT


@dataclass
class NaiveCnmem:
    """The same policy on a set of units."""

    free_units: set[int] = field(default_factory=lambda: set(range(POOL_BYTES // UNIT)))

    def pieces(self) -> list[tuple[int, int]]:
        """Return (units, first unit) of each free piece."""
        starts = [unit for unit in sorted(self.free_units) if unit - 1 not in self.free_units]
        ends = [unit + 1 for unit in sorted(self.free_units) if unit + 1 not in self.free_units]
        return [(end - start, start) for start, end in zip(starts, ends, strict=True)]

    def allocate(self, units: int) -> int | None:
        fitting = [piece for piece in self.pieces() if piece[0] >= units]
        if not fitting:
            return None
        start = min(fitting)[1]
        self.free_units -= set(range(start, start + units))
        return start


@given(st.lists(st.tuples(st.sampled_from(["allocate", "free"]), st.integers(1, 24)), max_size=40))
def test_pieces_are_those_of_the_policy_until_none_is_large_enough(actions: list[tuple[str, int]]) -> None:
    pool, model = CnmemPool(POOL_BYTES), NaiveCnmem()
    live: list[tuple[int, int]] = []  # first unit, units
    for action, number in actions:
        if action == "allocate":
            first = model.allocate(number)
            address = pool.allocate(number * UNIT)
            if first is None:
                used_bytes = sum(units for _, units in live) * UNIT + number * UNIT
                assert pool.held_bytes > POOL_BYTES if used_bytes <= POOL_BYTES else pool.held_bytes == used_bytes
                return
            assert address == first * UNIT
            live.append((first, number))
        elif live:
            first, units = live.pop(number % len(live))
            pool.free(first * UNIT, units * UNIT)
            model.free_units |= set(range(first, first + units))
        assert pool.held_bytes == sum(units for _, units in live) * UNIT
        assert pool.largest_free_bytes == max((units for units, _ in model.pieces()), default=0) * UNIT
