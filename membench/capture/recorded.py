"""Recorded: a step as it was recorded, to compare with a recording that is made later of the same step."""

import re
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from membench.capture.recording import Recording
from membench.capture.state.executed_code import ExecutedCode
from membench.capture.trace import Place, record
from membench.core.graph.call import Outputs
from membench.core.libraries.one_thread import CAPTURING
from membench.core.libraries.torch_contexts import autocast_dtype
from membench.core.libraries.torch_internals import FakeTensor
from membench.core.step.fully_sharded import whole_weights
from membench.core.step.workload import Workload

_KINDS = ("cpu", "cuda")


@dataclass(frozen=True)
class Recorded:
    """A recording, and what it was made of.

    Attributes:
        device, seen: see `capture`.
        code: the functions that ran.
        time_s: processor time of the recording.
        autocast_to: dtype of the autocast that it was made within, by type of device; None where that was off.
    """

    workload: Workload
    device: Place
    seen: Mapping[Hashable, Outputs]
    recording: Recording
    code: ExecutedCode
    time_s: float
    autocast_to: Mapping[str, torch.dtype | None]

    @classmethod
    def of(cls, workload: Workload, device: Place, seen: Mapping[Hashable, Outputs]) -> Self:
        """Record a step.

        Raises:
            UnsupportedModel: see `capture`.
        """
        start_s, code = time.thread_time(), ExecutedCode()
        with CAPTURING, whole_weights(workload.module):
            recording = record(workload, device, seen, code=code)
        time_s = time.thread_time() - start_s
        casts = {kind: autocast_dtype(kind) for kind in _KINDS}
        return cls(workload, device, dict(seen), recording, code, time_s, casts)

    def again(self) -> "Recorded":
        """Record the same step as its module and loss are now, wherever it is called; see `of`."""
        with ExitStack() as around:
            for kind, dtype in self.autocast_to.items():
                around.enter_context(torch.autocast(kind, dtype, enabled=dtype is not None))
            return Recorded.of(self.workload, self.device, self.seen)

    def difference(self, later: "Recorded") -> str:
        """Return in words where a later recording differs first, or nothing."""
        return next(_differences(self.recording, later.recording), "")


def _differences(one: Recording, other: Recording) -> Iterator[str]:
    for earlier, later in zip(one.tasks, other.tasks, strict=False):
        if _described(earlier.call) != _described(later.call):
            yield f"task {earlier.name!r} is another call than at the capture"
    if len(one.tasks) != len(other.tasks):
        yield f"there are {len(other.tasks)} tasks, and were {len(one.tasks)} at the capture"
    for block, constant in one.constants.items():
        if not _is_same(constant, other.constants.get(block)):
            yield f"a constant of shape {tuple(constant.shape)} has other values than at the capture"
    results = ((each.output, each.loss, each.gradients, each.input_gradients) for each in (one, other))
    if len(set(map(_described, results))) > 1:
        yield "the step returns something else than at the capture"


def _described(recorded: object) -> str:
    """Return calls or values as a text that tells numbers apart by type and sign, without addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(recorded))


def _is_same(one: Tensor, other: Tensor | None) -> bool:
    """Return whether two constants have the same bits; the values of fake ones are not known."""
    if one is other or isinstance(one, FakeTensor) or isinstance(other, FakeTensor):
        return True
    if other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)))
