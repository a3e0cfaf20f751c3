"""Planning processes that go from one advice to the next one: starting one takes seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from joblib.externals.loky import ProcessPoolExecutor

from membench.advice.pool.workers import Worker

_IDLE: list[ProcessPoolExecutor] = []


class _Kept(Worker):
    def _started(self) -> ProcessPoolExecutor:
        return _IDLE.pop() if _IDLE else super()._started()

    def end(self) -> None:
        pool = self._pool
        if pool is None or pool._flags.broken or pool._pending_work_items:
            super().end()
        else:
            self._pool = None
            _IDLE.append(pool)


@contextmanager
def kept_workers() -> Iterator[None]:
    """Let those that plan take a process that an earlier one has left, if there is one, and leave it for the next."""
    with patch("membench.advice.pool.workers.Worker", _Kept):
        yield
