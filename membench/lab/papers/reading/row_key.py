"""The key of a row: the columns that identify it, and the matching of two tables' rows by them."""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from membench.lab.papers.reading.experiment import Row

Entry = Mapping[str, str]
"""A line of a table of results, by column."""


class RowKey(NamedTuple):
    """The columns that identify a row, as the tables write them; a batch size that the paper leaves open is empty."""

    item: str
    model: str
    dataset: str
    batch_size: str
    device: str
    system: str
    metric: str
    unit: str

    @classmethod
    def of(cls, row: Row) -> "RowKey":
        """Return a row's key."""
        columns = {name: getattr(row, name) for name in cls._fields}
        return cls(**{**columns, "batch_size": "" if row.batch_size is None else str(row.batch_size)})

    @classmethod
    def read(cls, entry: Entry) -> "RowKey":
        """Return the key of a table's line; columns that the table lacks are empty."""
        return cls(*(entry.get(name, "") for name in cls._fields))

    def on_any_device(self) -> "RowKey":
        """Return the key under which a value measured on any device is found."""
        return self._replace(dataset="", device="", unit="")


KEY_COLUMNS = RowKey._fields


def full_key(entry: Entry) -> Hashable:
    """Return a line's paper and key."""
    return entry.get("paper", ""), RowKey.read(entry)


def key_and_value(entry: Entry) -> Hashable:
    """Return a line's paper, key and the paper's value."""
    return full_key(entry), entry["paper_value"]


def match(first: Sequence[Entry], second: Sequence[Entry], *keys: Callable[[Entry], Hashable]) -> dict[int, int]:
    """Match lines of two tables, each at most once; lines of equal keys match in their order.

    Args:
        keys: tried one after the other, each on the lines that are still unmatched.

    Returns:
        For each matched line of the first table, by position, the position of its line in the second.
    """
    found: dict[int, int] = {}
    for key in keys:
        unmatched: dict[Hashable, deque[int]] = defaultdict(deque)
        taken = set(found.values())
        for position, entry in enumerate(second):
            if position not in taken:
                unmatched[key(entry)].append(position)
        for position, entry in enumerate(first):
            if position not in found and (candidates := unmatched[key(entry)]):
                found[position] = candidates.popleft()
    return found
