"""Backend: memory, streams and a clock, real or simulated."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from membench.core.graph.codec import ActivationCodec
from membench.core.graph.schedule import Compute, Free, Schedule
from membench.core.graph.task_graph import Task
from membench.core.graph.timeline import Timeline

Event = Any
"""A backend's own record of when one of its instructions finishes."""


class Backend(ABC):
    """The interface through which the executor's loop drives a device.

    Work joins its stream's queue and returns an event. Memory instructions take effect at the compute stream's current
    position; the schedule ensures that no other stream still uses the memory that they give back.
    """

    @abstractmethod
    def prepare(self, schedule: Schedule) -> None:
        """Take what the steps of a schedule need and keep: host memory of planned places, and room on a disk.

        Raises:
            DiskFailed: there is less room on the disk than the schedule needs.
        """

    @abstractmethod
    def begin(self, *, timed: bool) -> None:
        """Start a step: the clock is at zero, and only external blocks are resident.

        Args:
            timed: `timeline` will be called; relevant to backends whose clock costs time.
        """

    @abstractmethod
    def compute(self, task: Task, stream: str) -> Event:
        """Run a task; blocks that it creates get memory now."""

    def run_of(self, instructions: Sequence[Compute | Free]) -> Callable[[], Event] | None:
        """Return a function that issues the compute stream's tasks and frees faster than one by one, or None.

        Its event is that of the last task. Called after a step whose instructions were issued one by one.

        Args:
            instructions: from a task on.
        """
        return None

    @abstractmethod
    def offload(self, block: int, stream: str) -> Event:
        """Copy a block to the host."""

    @abstractmethod
    def prefetch(self, block: int, stream: str) -> Event:
        """Give a block memory now and copy it back from the host."""

    @abstractmethod
    def load(self, block: int, stream: str) -> Event:
        """Give a block a buffer in host memory now and fill it from the disk.

        Raises:
            DiskFailed: the disk is broken; raised at the latest by a wait for it, as by `store`.
        """

    @abstractmethod
    def store(self, block: int, stream: str) -> Event:
        """Copy a block from host memory to the disk."""

    @abstractmethod
    def drop(self, block: int, stream: str) -> Event:
        """Give a block's buffer in host memory back, at the stream's position."""

    @abstractmethod
    def all_reduce(self, block: int, root: int | None, stream: str) -> Event:
        """Replace a block by its mean over all processes; see `AllReduce`."""

    @abstractmethod
    def encode(self, block: int, encoded: int, codec: ActivationCodec, stream: str) -> Event:
        """Give a block's encoded form memory now and encode it.

        Raises:
            EncodingOverflow: the data does not fit the planned size; raised at the latest by a wait for it.
        """

    @abstractmethod
    def decode(self, block: int, encoded: int, codec: ActivationCodec, stream: str) -> Event:
        """Give a block memory now and fill it from its encoded form."""

    @abstractmethod
    def reserve(self, block: int, space_bytes: int) -> None:
        """Open a space larger than the block that will enter it."""

    @abstractmethod
    def reuse(self, block: int, dead: int) -> None:
        """Give a dead block's space to another block."""

    @abstractmethod
    def free(self, block: int) -> None:
        """Give a block's memory back."""

    @abstractmethod
    def hold(self, size_bytes: int) -> None:
        """Hold that much memory in addition to the blocks; replaces the last hold."""

    @abstractmethod
    def wait(self, stream: str, event: Event) -> None:
        """Make a stream wait for an event."""

    @abstractmethod
    def synchronize(self) -> None:
        """Make the host wait for every stream except the exchange's."""

    @abstractmethod
    def end(self) -> None:
        """Finish the step: the caller's next work on the compute stream comes after it."""

    @abstractmethod
    def timeline(self, issued: tuple[int, ...]) -> Timeline:
        """Wait until every stream is idle, and return the timeline of the last step, which was begun as timed.

        Args:
            issued: positions of the work in the schedule, in the order of issue.
        """
