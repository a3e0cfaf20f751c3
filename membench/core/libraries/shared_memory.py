"""Memory that a caller's tensors share: inputs passed twice, targets that are views of them, aliased buffers."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

from torch import Tensor

from membench.core.libraries.torch_internals import FakeTensor, storage_address


class Span(NamedTuple):
    """The bytes from a tensor's first element to its last.

    Attributes:
        memory: tells memories apart: a device, or of tensors without data a storage.
    """

    memory: Hashable
    start: int
    end: int

    def overlaps(self, other: "Span") -> bool:
        """Return whether both have a byte in common."""
        return self.memory == other.memory and max(self.start, other.start) < min(self.end, other.end)


def span_of(tensor: Tensor) -> Span:
    """Return where a dense tensor lies."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    size_bytes = (1 + reach) * tensor.itemsize if tensor.numel() else 0
    whole = storage_span(tensor)
    start = whole.start + int(tensor.storage_offset()) * tensor.itemsize
    return Span(whole.memory, start, start + size_bytes)


def storage_span(tensor: Tensor) -> Span:
    """Return where the storage lies that holds a dense tensor."""
    storage = tensor.untyped_storage()
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        return Span(storage_address(storage), 0, storage.nbytes())
    return Span(tensor.device, storage.data_ptr(), storage.data_ptr() + storage.nbytes())


class DistinctMemory:
    """Counts bytes of memory, those that several tensors share once."""

    def __init__(self) -> None:
        self._counted: dict[Hashable, list[tuple[int, int]]] = {}  # without overlaps, in order

    def add(self, span: Span) -> int:
        """Return how many bytes of a span had not been counted before."""
        counted, start, end = self._counted.setdefault(span.memory, []), span.start, span.end
        first = last = bisect_right(counted, start, key=itemgetter(1))
        while last < len(counted) and counted[last][0] < end:
            last += 1
        known = counted[first:last]
        if start < end:
            counted[first:last] = [
                (min(start, *map(itemgetter(0), known), end), max(end, *map(itemgetter(1), known), start))
            ]
        return end - start - sum(min(end, each[1]) - max(start, each[0]) for each in known)


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the memory that dense tensors lie in, counted once where several share it."""
    memory = DistinctMemory()
    return sum(memory.add(span_of(tensor)) for tensor in tensors)


def sharing(tensors: Sequence[Tensor]) -> Hashable:
    """Return which of a call's tensors are the same or share a storage, and how far apart; None if none do."""
    storages = [storage_address(tensor.untyped_storage()) for tensor in tensors]
    if len(set(storages)) == len(storages):
        return None
    first = {storage: position for position, storage in reversed(list(enumerate(storages)))}
    same = {id(tensor): position for position, tensor in reversed(list(enumerate(tensors)))}
    return tuple([
        (first[storage], same[id(tensor)], tensor.storage_offset() - tensors[first[storage]].storage_offset())
        for tensor, storage in zip(tensors, storages, strict=True)
    ])  # fmt: skip
