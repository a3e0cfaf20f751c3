"""WatchedState: whether a step still computes what its module and its loss do.

Before each step the module's structure and what the step reads of Python are compared with the capture's. Where they
differ, the step is recorded again on fake tensors: it computes the same, or is out of date. From time to time it is
recorded again in any case, for what no comparison shows: a clock, a counter, a file.
"""

import logging
import reprlib
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from membench.capture.recorded import Recorded
from membench.capture.state.executed_code import ExecutedCode
from membench.capture.state.module_state import ModuleState
from membench.capture.state.places import Change
from membench.capture.state.python_reads import PythonReads
from membench.core.errors import ModuleChanged, StepOutdated, UnsupportedModel
from membench.core.step.arguments import named_leaves
from membench.core.step.workload import Workload

_SHARE = 0.02
"""The most of the steps' time that recordings take which nothing but time has caused."""
_MOST_HARMLESS = 8
"""How often a place may change while the step stays the same, before it is left to the recordings from time to time."""

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_log = logging.getLogger("membench")


class WatchedState:
    """The state of a module, its loss and its arguments with which a step was captured.

    Args:
        workload: the step's workload.
        recorded: the step as it was captured; None: it is not called by a program, and only the module's structure is
            compared.
        has_own_hooks: see `ModuleState`.

    Raises:
        UnsupportedModel: two recordings differ, as of a module that draws from a random generator of its own.
    """

    def __init__(self, workload: Workload, recorded: Recorded | None, *, has_own_hooks: bool = True) -> None:
        self._workload, self._recorded = workload, recorded
        self._module_state = ModuleState(workload.module, workload.loss, has_own_hooks=has_own_hooks)
        self._harmless: Counter[tuple[str, Any]] = Counter()
        self._outdated = ""
        self._steps = 0  # since the step was recorded
        self._time_s = self._spent_s = 0.0
        if recorded is None:
            return
        self._reads = self._read_by(recorded.code)
        if self._reads.kept:
            raise UnsupportedModel(
                "",
                f"{self._reads.kept[0]} keeps a tensor that is made at the first call",
                "keep it in a buffer, or call the module once on a batch before",
            )
        if self._reads.uncompared:
            _log.info(
                "%s is recorded again from time to time, because what it reads is not compared from step to step: %s",
                workload.name, "; ".join(self._reads.uncompared),
            )  # fmt: skip
        if self._reads.may_draw and (difference := self.difference()):
            raise UnsupportedModel(
                "",
                f"it computes something else each time ({difference}), as with a clock, a counter, an iterator or a "
                "random generator of its own, and every step would repeat the first",
                "pass what changes as a tensor, or keep it in a buffer; draw random numbers with torch",
            )

    def check(self) -> None:
        """Refuse a step that does not compute what its module and its loss do now; takes some microseconds.

        Raises:
            ModuleChanged: the module, the loss or an argument has changed.
            StepOutdated: another recording differs, although no change was seen; earlier steps may have been wrong.
            UnsupportedModel: a weight has a hook on its gradient.
        """
        self._module_state.check()
        self._steps += 1
        if self._recorded is None:
            return
        if not self.reads_are_unchanged():
            self._confirm()
        if self._outdated or _SHARE * self._time_s > self._spent_s + self._recorded.time_s:
            self._look_again()

    def reads_are_unchanged(self) -> bool:
        """Return whether what the step reads of Python lies in the same objects as when it was compared last."""
        return self._recorded is None or self._reads.places.are_unchanged()

    def difference(self) -> str:
        """Record the step again, and return in words how it differs from the capture, or nothing."""
        if self._recorded is None:
            return ""
        try:
            later = self._recorded.again()
        except Exception as error:  # whatever a changed module raises
            return f"it cannot be captured any more: {error}"
        reads = self._read_by(later.code)  # in any case: caches forget what the recording has left in them
        difference = self._recorded.difference(later)
        if not difference:
            self._reads, self._steps = reads, 0
        return difference

    @property
    def share_of_recordings(self) -> float:
        """Seconds of recordings after the capture over those of the steps."""
        return self._spent_s / self._time_s if self._time_s else 0.0

    def ran(self, time_s: float) -> None:
        """Add seconds that the step has taken."""
        self._time_s += time_s

    def _read_by(self, code: ExecutedCode) -> PythonReads:
        kinds = (("inputs", self._workload.inputs), ("targets", self._workload.targets))
        leaves = [leaf for kind, arguments in kinds for leaf in named_leaves(kind, arguments)]
        left_out = frozenset(place for place, times in self._harmless.items() if times >= _MOST_HARMLESS)
        return PythonReads(self._module_state.layers, self._workload.loss, leaves, code, left_out)

    def _confirm(self) -> None:
        """Find out whether a change matters.

        Raises:
            ModuleChanged: it does.
        """
        changes = list(self._reads.places.changes())
        if not changes:  # equal numbers in other objects
            self._reads.places.remember()
            return
        if self.difference():
            raise ModuleChanged(
                f"{_described(changes)}; compile again, or put a value that changes into a buffer or a target"
            )
        self._harmless.update((change.owner, change.name) for change in changes)
        self._reads = self._read_by(self._reads.code)
        for change in changes:
            if self._harmless[change.owner, change.name] == _MOST_HARMLESS:
                _log.warning(
                    "%s of %s has changed %d times while the step stayed the same; from now on this is looked at from "
                    "time to time",
                    change.name, change.owner, _MOST_HARMLESS,
                )  # fmt: skip

    def _look_again(self) -> None:
        """Record the step again, and stop if it differs.

        Raises:
            StepOutdated: it does.
        """
        if self._outdated:
            raise StepOutdated(self._outdated)
        steps, start_s = self._steps, time.perf_counter()
        difference = self.difference()
        self._spent_s += time.perf_counter() - start_s
        if difference:
            self._outdated = (
                f"the step does not compute what the module does now: {difference}; it follows something that is not "
                "compared from step to step, such as a clock, a counter, a file or a random generator of its own, and "
                f"the last {steps} steps may be wrong; pass what changes as a tensor, or keep it in a buffer, and "
                "compile again"
            )
            raise StepOutdated(self._outdated)


def _described(changes: Sequence[Change]) -> str:
    first = changes[0]
    where = f"[{first.name}]" if isinstance(first.name, int) else first.name
    further = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
    now, then = map(_SHORT.repr, (first.now, first.then))
    return f"{first.owner} has {where}={now}, but had {then} when the step was captured{further}"
