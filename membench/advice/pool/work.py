"""Calls in threads, most of which wait for processes, and a line in the terminal on how many are done."""

import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from membench.core.terminal import progress_bar

Result = TypeVar("Result")


class Work:
    """Calls that run at the same time.

    Args:
        threads: how many at most.
        progress: show on stderr how many are done, if that is a terminal.
    """

    def __init__(self, threads: int, *, progress: bool) -> None:
        self._threads = ThreadPoolExecutor(threads)
        self._bar = progress_bar("plans", "plan", 0, shown=progress)

    def __enter__(self) -> "Work":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._bar.close()

    def show(self, found: str) -> None:
        """Show what was found, where progress is shown."""
        if not self._bar.disable:
            self._bar.write(f"  {found}", file=sys.stderr)

    def start(self, call: Callable[..., Result], *arguments: object) -> Future[Result]:
        """Begin a call."""
        self._bar.total = (self._bar.total or 0) + 1
        future = self._threads.submit(call, *arguments)
        future.add_done_callback(lambda _: self._bar.update())
        return future
