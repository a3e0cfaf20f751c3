"""Workspaces of tasks on other streams than the compute stream, as a schedule holds them.

Such a task may still run while the compute stream goes on to the instructions behind it. So its workspace is held until
the compute stream has waited for it, or for later work of its stream. A stream runs one task at a time: it holds the
largest of these workspaces.
"""

from collections import deque

from membench.core.graph.schedule import EXCHANGE_STREAM


class Workspaces:
    """Workspaces of tasks that the compute stream has not waited for."""

    def __init__(self) -> None:
        # by stream: position of a task and its workspace's bytes; each is larger than all behind it
        self._pending: dict[str, deque[tuple[int, int]]] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of all streams together."""
        return sum(tasks[0][1] for tasks in self._pending.values() if tasks)

    def take(self, stream: str, position: int, size_bytes: int) -> None:
        """Hold the workspace of a task, the last so far of its stream."""
        tasks = self._pending.setdefault(stream, deque())
        while tasks and tasks[-1][1] <= size_bytes:
            tasks.pop()
        tasks.append((position, size_bytes))

    def waited(self, stream: str, position: int) -> None:
        """Release what the stream's work up to a position holds: the compute stream has waited for that."""
        tasks = self._pending.get(stream, ())
        while tasks and tasks[0][0] <= position:
            tasks.popleft()

    def synchronized(self) -> None:
        """Release what every stream holds that a `Synchronize` waits for."""
        self._pending = {EXCHANGE_STREAM: self._pending.get(EXCHANGE_STREAM, deque())}
