"""The validator's rules for copies in host memory and on the disk: valid, open, ordered, within a limit.

The same rules as for device memory: nothing reads or overwrites a copy before what was issued earlier on it is known to
have finished, and memory that is given back counts as written by the stream at whose position it changes hands.
"""

from dataclasses import dataclass, field
from typing import Protocol

from membench.core.graph.schedule import COMPUTE_STREAM, LOAD_STREAM
from membench.core.graph.task_graph import TaskGraph
from membench.planning.checking.clocks import Access, Clocks

BEFORE_THE_STEP: Access = (COMPUTE_STREAM, -1)


class Order(Protocol):
    """What the walk over a program knows of the order of its instructions."""

    clocks: Clocks

    def what(self, access: Access | None) -> str:
        """Return a description of an access."""

    def hazard(self, what: str) -> None:
        """Raise an error with a description."""


@dataclass(slots=True)
class _Copies:
    """The state of one block's copies."""

    is_open: bool = False  # it has a buffer, or its home, in host memory
    filled_by: Access | None = None  # while the copy in host memory is valid
    users: list[Access] = field(default_factory=list)  # of host memory: the last write, and reads since
    stored_by: Access | None = None  # while the copy on the disk is valid


class HostCopies:
    """Copies of a graph's blocks during the walk over a program.

    Args:
        order: a weak reference: the walk has these copies, and ends with the last reference to it.
        limit_bytes: the most host memory that the step may hold; None: no limit.

    Attributes:
        peak_bytes: the most host memory held so far: homes there, and buffers.
    """

    def __init__(self, graph: TaskGraph, order: Order, limit_bytes: int | None) -> None:
        self._graph = graph
        self._order = order
        self._limit_bytes = limit_bytes
        self._copies = [_Copies() for _ in graph.blocks]
        self._last_drop: Access | None = None
        self._live_bytes = self.peak_bytes = 0
        for block, copies in zip(graph.blocks, self._copies, strict=True):
            if block.is_on_disk:
                copies.stored_by = BEFORE_THE_STEP
            elif block.host_location:
                copies.is_open, copies.filled_by = True, BEFORE_THE_STEP
                self._take(0 if block.is_part else block.size_bytes)

    def is_valid(self, block: int) -> bool:
        """Return whether a block has a valid copy in host memory."""
        return self._copies[block].filled_by is not None

    def invalidate(self, block: int) -> None:
        """Note that a block is written on the device."""
        self._copies[block].filled_by = self._copies[block].stored_by = None

    def read(self, block: int, access: Access) -> None:
        """Read a copy in host memory."""
        copies = self._copies[block]
        if copies.filled_by is None:
            self._order.hazard(f"{self._name(block)} has no valid copy on the host")
        if not self._order.clocks.known(access[0], copies.filled_by):
            what = self._order.what(copies.filled_by)
            self._order.hazard(f"{self._name(block)} is read on the host before {what} is known to be done")
        copies.users.append(access)

    def fill(self, block: int, access: Access) -> None:
        """Write the block's contents into host memory."""
        copies = self._copies[block]
        if not copies.is_open:
            self._open(block, access)
        self._check_unused(block, access, "overwritten on the host")
        copies.filled_by, copies.users = access, [access]

    def change(self, block: int, access: Access) -> None:
        """Write new contents into host memory, by a task."""
        if not self._copies[block].is_open:
            self._order.hazard(f"{self._name(block)} is written on the host, where it has no memory")
        self.fill(block, access)
        self._copies[block].stored_by = None

    def load(self, block: int, access: Access) -> None:
        """Open a buffer and fill it from the disk."""
        copies = self._copies[block]
        if copies.is_open:
            self._order.hazard(f"{self._name(block)} is loaded although it is in host memory")
        if copies.stored_by is None:
            self._order.hazard(f"{self._name(block)} has no valid copy on the disk")
        if not self._order.clocks.known(access[0], copies.stored_by):
            what = self._order.what(copies.stored_by)
            self._order.hazard(f"{self._name(block)} is loaded before {what} is known to be done")
        self.fill(block, access)

    def store(self, block: int, access: Access) -> None:
        """Copy a block from host memory to the disk."""
        copies = self._copies[block]
        self.read(block, access)
        if copies.stored_by is not None:
            self._order.hazard(f"{self._name(block)} is stored twice")
        # earlier uses of the disk have ended: they used the buffer as well, and it was written since
        copies.stored_by = access

    def drop(self, block: int, access: Access) -> None:
        """Close a buffer."""
        copies, described = self._copies[block], self._graph.blocks[block]
        if access[0] != LOAD_STREAM:
            self._order.hazard(f"{self._name(block)} is dropped on stream {access[0]!r}, not on {LOAD_STREAM!r}")
        if described.host_location and not described.is_on_disk:
            self._order.hazard(f"{self._name(block)} is dropped, and host memory is its home")
        if not copies.is_open:
            self._order.hazard(f"{self._name(block)} is dropped, and has no buffer in host memory")
        self._check_unused(block, access, "dropped")
        copies.is_open, copies.filled_by, copies.users = False, None, []
        self._live_bytes -= described.size_bytes
        self._last_drop = access

    def check_end(self) -> None:
        """Check that every home is up to date, and that the caller may use it."""
        if not self._order.clocks.known(COMPUTE_STREAM, self._last_drop):
            self._order.hazard("the step ends while a buffer may still be dropped")
        for block, copies in zip(self._graph.blocks, self._copies, strict=True):
            at_home = copies.stored_by if block.is_on_disk else copies.filled_by
            if block.host_location and at_home is None:
                where = "disk" if block.is_on_disk else "host"
                self._order.hazard(f"{block.name} was written, and its home on the {where} was not updated")
            if block.is_on_disk and copies.is_open:
                self._order.hazard(f"{block.name} is still in host memory at the end")
            for user in copies.users:
                if not self._order.clocks.known(COMPUTE_STREAM, user):
                    self._order.hazard(
                        f"{block.name} is handed to the caller while {self._order.what(user)} may still use it"
                    )

    def _check_unused(self, block: int, access: Access, verb: str) -> None:
        for user in self._copies[block].users:
            if user[1] != access[1] and not self._order.clocks.known(access[0], user):
                self._order.hazard(f"{self._name(block)} is {verb} while {self._order.what(user)} may still use it")

    def _open(self, block: int, access: Access) -> None:
        if not self._order.clocks.known(access[0], self._last_drop):
            self._order.hazard(f"{self._name(block)} takes host memory before the load stream has come to this point")
        self._copies[block].is_open = True
        self._take(self._graph.blocks[block].size_bytes)

    def _take(self, size_bytes: int) -> None:
        self._live_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        if self._limit_bytes is not None and self._live_bytes > self._limit_bytes:
            self._order.hazard(
                f"holds {self._live_bytes} bytes of host memory, more than the limit of {self._limit_bytes}"
            )

    def _name(self, block: int) -> str:
        return repr(self._graph.blocks[block].name)
