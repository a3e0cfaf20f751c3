"""When messages between simulated ranks arrive; the ranks run in threads of their own, each on its virtual clocks."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from membench.core.errors import MembenchError


class Mailbox:
    """Arrival times of messages by name.

    A rank that receives one before it is sent waits, in real time, for its sender.

    Args:
        ranks: that are simulated together.
    """

    def __init__(self, ranks: int) -> None:
        self._arrived_s: dict[str, float] = {}
        self._changed = Condition()
        self._running = ranks
        self._awaited: set[str] = set()

    @contextmanager
    def rank(self) -> Iterator[None]:
        """Simulate one of the ranks, which sends nothing afterwards."""
        try:
            yield
        finally:
            self._stop_running()

    def post(self, message: str, time_s: float) -> None:
        """Note that a message has arrived."""
        with self._changed:
            assert message not in self._arrived_s, f"two messages are named {message!r}"
            self._arrived_s[message] = time_s
            self._changed.notify_all()

    def take(self, message: str) -> float:
        """Return when a message arrives, in seconds since the step began.

        Raises:
            MembenchError: no rank is left that could send it.
        """
        with self._changed:
            if message not in self._arrived_s:
                self._awaited.add(message)
                self._stop_running()
                self._changed.wait_for(lambda: message in self._arrived_s or self._is_over())
                if message not in self._arrived_s:
                    raise MembenchError(f"no rank sends {message!r}")
                self._awaited.remove(message)
                self._running += 1
            return self._arrived_s.pop(message)

    def _is_over(self) -> bool:
        """Return whether no rank runs, and none is about to."""
        return not self._running and self._awaited.isdisjoint(self._arrived_s)

    def _stop_running(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()
