"""Places in Python's memory, such as attributes and items, whose contents are compared with earlier ones, many at once.

Contents are the same if they are the same object, or equal numbers, strings and the like of one type, bit for bit.
Before that is asked of each place, loops in C compare the objects of all of them, some 50 ns each. They make no lists:
right after a step the processor's caches are cold, and memory for a list costs more than the comparison.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, repeat
from operator import eq, getitem, is_
from typing import Any, final

import numpy as np

_EXACT = (bool, int, float, complex, str, bytes, range, Fraction, type(None))
_SIZE = "the number of attributes"


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()
"""The content of a place that is not there."""


@dataclass(frozen=True)
class Change:
    """A place whose content differs.

    Attributes:
        owner: whose place it is, in words.
        name: an attribute, a variable or a key, or the index of an item.
        now, then: contents.
    """

    owner: str
    name: Any
    now: Any
    then: Any


@dataclass(frozen=True)
class _Named:
    """Places of a holder by their names; if it is sized, another place in it is a change."""

    owner: str
    holder: Any
    names: tuple[Any, ...]
    read: Callable[..., Any]
    is_sized: bool

    def values(self) -> list[Any]:
        """Return the holder's size, if it counts, and the contents."""
        return [len(self.holder) if self.is_sized else None, *map(self._content, self.names)]

    def _content(self, name: Any) -> Any:
        try:
            return self.read(self.holder, name, *(() if self.read is getitem else (ABSENT,)))
        except (LookupError, AttributeError, ValueError):
            return ABSENT


@dataclass(frozen=True)
class _Sequence:
    """All items of a holder in their order: those of a list, or the values or the keys of a dict."""

    owner: str
    holder: Any
    items: Callable[[Any], Iterable[Any]]

    def by_name(self) -> dict[Any, Any]:
        """Return the items by their keys or positions."""
        return dict(self.holder) if self.items is dict.values else dict(enumerate(self.items(self.holder)))


@dataclass(frozen=True)
class _Content:
    """What a function returns, compared by equality."""

    owner: str
    name: Any
    read: Callable[[], Any]


class _Columns:
    """Holders, names in them, and what was there, each in a list of its own: one after the other in memory."""

    def __init__(self) -> None:
        self.holders: list[Any] = []
        self.names: list[Any] = []
        self.then: list[Any] = []

    def extend(self, holders: Iterable[Any], names: Iterable[Any], then: Iterable[Any]) -> None:
        self.holders += holders
        self.names += names
        self.then += then

    def read_by(self, read: Callable[..., Any]) -> Iterator[Any]:
        """Return what is there now; see `Places.add`."""
        if read is getitem:
            return map(getitem, self.holders, self.names)
        return map(read, self.holders, self.names, repeat(ABSENT))


@final
class Places:
    """Places, and their contents when they were last remembered.

    Args:
        left_out: places that are not compared, by owner and name.
    """

    def __init__(self, left_out: Set[tuple[str, Any]] = frozenset()) -> None:
        self._left_out = left_out
        self._named: list[_Named] = []
        self._sequences: list[_Sequence] = []
        self._contents: list[_Content] = []
        self._then: tuple[list[list[Any]], list[dict[Any, Any]], list[Any]] = [], [], []
        self._objects: dict[Callable[..., Any], _Columns] = {}
        self._items: dict[Callable[..., Any], _Columns] = {}
        self._sizes = _Columns()
        self._empty: list[Any] = []

    def add(
        self,
        owner: str,
        holder: Any,
        names: Sequence[Any],
        read: Callable[..., Any] = getitem,
        *,
        is_sized: bool = False,
    ) -> None:
        """Add places of a holder; if it is sized, another place in it is a change too.

        Args:
            read: `getitem` where all places are there, or a function of holder, name and what it returns without such a
                place.
        """
        is_sized = is_sized and (owner, _SIZE) not in self._left_out
        if self._left_out:
            names = [name for name in names if (owner, name) not in self._left_out]
        self._named.append(_Named(owner, holder, tuple(names), read, is_sized))

    def add_items(self, owner: str, holder: Any, items: Callable[[Any], Iterable[Any]] = iter) -> None:
        """Add all items of a holder."""
        if not any(owner == each for each, _ in self._left_out):
            self._sequences.append(_Sequence(owner, holder, items))

    def add_content(self, owner: str, name: Any, read: Callable[[], Any]) -> None:
        """Add what a function returns, a new object that can be compared."""
        if (owner, name) not in self._left_out:
            self._contents.append(_Content(owner, name, read))

    def remember(self) -> None:
        """Take the contents as they are now."""
        named = [each.values() for each in self._named]
        sequences = [each.by_name() for each in self._sequences]
        self._then = named, sequences, [each.read() for each in self._contents]
        self._objects, self._items, self._sizes, self._empty = (
            defaultdict(_Columns),
            defaultdict(_Columns),
            _Columns(),
            [],
        )
        for each, (size, *values) in zip(self._named, named, strict=True):
            self._objects[each.read].extend([each.holder] * len(values), each.names, values)
            if each.is_sized:
                self._sizes.extend([each.holder], (), [size])
        for sequence, items in zip(self._sequences, sequences, strict=True):
            if items:
                self._items[sequence.items].extend([sequence.holder], (), items.values())
                self._sizes.extend([sequence.holder], (), [len(items)])
            else:
                self._empty.append(sequence.holder)

    def are_unchanged(self) -> bool:
        """Return whether all contents are the same objects; equal ones that are not may count as changed."""
        try:
            return (
                not any(self._empty)
                and all(map(eq, map(len, self._sizes.holders), self._sizes.then))
                and all(all(map(is_, each.read_by(read), each.then)) for read, each in self._objects.items())
                and all(
                    all(map(is_, chain.from_iterable(map(items, each.holders)), each.then))
                    for items, each in self._items.items()
                )
                and all(each.read() == then for each, then in zip(self._contents, self._then[2], strict=True))
            )
        except (LookupError, RuntimeError, TypeError, ValueError):
            return False  # a place is gone, or a dict is changed by another thread

    def changes(self) -> Iterator[Change]:
        """Yield the places whose contents differ."""
        named, sequences, contents = self._then
        for each, values in zip(self._named, named, strict=True):
            size, *now = each.values()
            yield from _differences(each.owner, each.names, now, values[1:])
            if size != values[0]:
                yield Change(each.owner, _SIZE, size, values[0])
        for sequence, then in zip(self._sequences, sequences, strict=True):
            items = sequence.by_name()
            names = {**then, **items}
            both = ([each.get(name, ABSENT) for name in names] for each in (items, then))
            yield from _differences(sequence.owner, names, *both)
        for content, earlier in zip(self._contents, contents, strict=True):
            if (found := content.read()) != earlier:
                yield Change(content.owner, content.name, found, earlier)


def is_same(now: Any, then: Any) -> bool:
    """Return whether two objects are one, or equal values of one type, bit for bit."""
    if now is then:
        return True
    if type(now) is not type(then):
        return False
    if isinstance(then, np.generic):
        return now.tobytes() == then.tobytes()
    if type(then) in (tuple, frozenset):
        return len(now) == len(then) and all(map(is_same, now, then))
    return type(then) in _EXACT and repr(now) == repr(then)


def _differences(owner: str, names: Iterable[Any], now: Iterable[Any], then: Iterable[Any]) -> Iterator[Change]:
    for name, one, other in zip(names, now, then, strict=True):
        if not is_same(one, other):
            yield Change(owner, name, one, other)
