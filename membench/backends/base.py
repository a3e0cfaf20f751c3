"""Backend: memory, streams and a clock, whatever they are made of."""

from abc import ABC, abstractmethod
from typing import Any

from membench.core.codec import ActivationCodec
from membench.core.task_graph import Task
from membench.core.timeline import Timeline

Event = Any
"""What a backend needs to know when one of its instructions has finished."""


class Backend(ABC):
    """What the executor's loop asks of a device.

    Work joins its stream's queue and returns an event. Memory instructions take effect at the position where
    the compute stream stands; the schedule makes sure that no other stream still uses what they give back.
    """

    @abstractmethod
    def begin(self, *, timed: bool) -> None:
        """Start a step: the clock stands at zero, nothing but the caller's blocks is resident.

        Args:
            timed: a timeline will be asked for. Matters only where a clock costs time.
        """

    @abstractmethod
    def compute(self, task: Task, stream: str) -> Event:
        """Run a task; blocks that it creates get memory now."""

    @abstractmethod
    def offload(self, block: int, stream: str) -> Event:
        """Copy a block to the host."""

    @abstractmethod
    def prefetch(self, block: int, stream: str) -> Event:
        """Give a block memory now and copy it back from the host."""

    @abstractmethod
    def all_reduce(self, block: int, root: int | None, stream: str) -> Event:
        """Put a block's mean over all processes in its place; see `AllReduce`."""

    @abstractmethod
    def encode(self, block: int, encoded: int, codec: ActivationCodec, stream: str) -> Event:
        """Give a block's encoded form memory now and encode it.

        Raises:
            EncodingOverflow: the data does not fit what was planned; at the latest when somebody waits for it.
        """

    @abstractmethod
    def decode(self, block: int, encoded: int, codec: ActivationCodec, stream: str) -> Event:
        """Give a block memory now and fill it from its encoded form."""

    @abstractmethod
    def reserve(self, block: int, space_bytes: int) -> None:
        """Open a space larger than the block that will enter it."""

    @abstractmethod
    def reuse(self, block: int, dead: int) -> None:
        """Hand a dead block's space on."""

    @abstractmethod
    def free(self, block: int) -> None:
        """Give a block's memory back."""

    @abstractmethod
    def hold(self, size_bytes: int) -> None:
        """Hold that much memory which no block uses, instead of what was held so before."""

    @abstractmethod
    def wait(self, stream: str, event: Event) -> None:
        """Make a stream wait for an event."""

    @abstractmethod
    def synchronize(self) -> None:
        """Make the host wait for every stream but the exchange's."""

    @abstractmethod
    def end(self) -> None:
        """Finish the step: what the caller does next on the compute stream comes after it."""

    @abstractmethod
    def timeline(self, issued: tuple[int, ...]) -> Timeline:
        """Wait until every stream is idle and say what ran when in the step just ended, which was begun as timed.

        Args:
            issued: positions of the work, in the order of issue.
        """
