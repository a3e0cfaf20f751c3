"""Stand-ins for streams and events of an accelerator, with copies as late as the waits allow.

Tasks run when they are issued. A copy joins the queue of its stream and runs when it is waited for: by the compute
stream through an event, or by the host. A protocol without a needed wait then reads data that has not been copied.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from membench.core.libraries.torch_internals import TorchDispatchMode

COMPUTE = "compute"


class FakeAccelerator:
    """Every call by stream and event, in `calls`: ``("copy", "wait", "e3")``."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.compute = FakeStream(self, COMPUTE)
        self.current = self.compute
        self.streams = [self.compute]
        self.events = 0
        self.locked_bytes: dict[int, int] = {}
        self.clock_ms = 0.0

    def make_stream(self, device: Any = None) -> "FakeStream":
        self.streams.append(FakeStream(self, f"stream{len(self.streams)}"))
        return self.streams[-1]

    def make_event(self, device: Any = None, enable_timing: bool = False) -> "FakeEvent":
        self.events += 1
        return FakeEvent(f"e{self.events}", enable_timing)

    def set_stream(self, stream: "FakeStream") -> None:
        self.current = stream

    # ---- the runtime's page locks -------------------------------------------------------------------

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:  # noqa: N802
        self.locked_bytes[address] = size_bytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.locked_bytes[address]
        return 0


class FakeStream:
    def __init__(self, cuda: FakeAccelerator, name: str) -> None:
        self.cuda = cuda
        self.name = name
        self.queue: list[Callable[[], None]] = []
        self.issued = 0

    def push(self, work: Callable[[], None]) -> None:
        self.queue.append(work)
        self.issued += 1
        if self.name == COMPUTE:
            self.run_until(self.issued)

    def run_until(self, position: int) -> None:
        while self.queue and self.issued - len(self.queue) < position:
            self.queue.pop(0)()

    def wait_event(self, event: "FakeEvent") -> None:
        self.cuda.calls.append((self.name, "wait", event.name))
        assert event.stream is not None, "waited for an event that was never recorded"
        stream, position = event.stream, event.position
        self.push(lambda: stream.run_until(position))

    def synchronize(self) -> None:
        self.cuda.calls.append((self.name, "synchronize", ""))
        self.run_until(self.issued)


class FakeEvent:
    def __init__(self, name: str, enable_timing: bool) -> None:
        self.name = name
        self.enable_timing = enable_timing
        self.stream: FakeStream | None = None
        self.position = 0
        self.time_ms = 0.0

    def record(self, stream: FakeStream) -> None:
        cuda = stream.cuda
        cuda.calls.append((stream.name, "record", self.name))
        cuda.clock_ms += 1.0
        self.stream, self.position, self.time_ms = stream, stream.issued, cuda.clock_ms

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self.enable_timing and end.enable_timing
        return end.time_ms - self.time_ms


class _LateCopies(TorchDispatchMode):
    def __init__(self, cuda: FakeAccelerator) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.ops.aten.copy_.default or self.cuda.current is self.cuda.compute:
            current = self.cuda.current
            current.run_until(current.issued)  # a stream is in order: its late copies come first
            return func(*args, **(kwargs or {}))
        target, source = args[:2]
        self.cuda.calls.append((self.cuda.current.name, "copy", ""))
        self.cuda.current.push(lambda: _copy(target, source))
        return target


def _copy(target: Tensor, source: Tensor) -> None:
    with torch.utils._python_dispatch._disable_current_modes():
        target.copy_(source)


@contextmanager
def fake_accelerator(patch: pytest.MonkeyPatch) -> Iterator[FakeAccelerator]:
    """Put the fake in the place of torch's streams, events and CUDA's runtime."""
    cuda = FakeAccelerator()
    patch.setattr(torch, "Stream", cuda.make_stream)
    patch.setattr(torch, "Event", cuda.make_event)
    patch.setattr(torch.accelerator, "set_stream", cuda.set_stream)
    patch.setattr(torch.accelerator, "current_stream", lambda device=None: cuda.compute)
    patch.setattr("membench.backends.pinned.locks_pages", lambda device: True)
    patch.setattr(torch.cuda, "cudart", lambda: cuda)
    with _LateCopies(cuda):
        yield cuda
