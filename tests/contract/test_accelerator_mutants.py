"""Without any wait, record, allocation, page lock or lifetime of the accelerators' backend a check fails."""

from contextlib import suppress
from types import ModuleType
from unittest.mock import patch

import pytest

from membench.backends import accelerator, pinned
from membench.execution.measurement import synchronize
from tests.helpers.code_mutants import CodeMutant, code_mutants
from tests.helpers.devices import DEVICE, delay
from tests.helpers.emulator.accelerator_checks import CHECKS

pytestmark = pytest.mark.emulated
ORDERED = {"_allocate", "_follow_compute", "record", "set_stream", "submit", "synchronize", "wait_event"}
REPLACED = {
    "stream": "COMPUTE_STREAM",
    "True": "False",
    "self._write_new": "self._issue",
    "self.pinned.take(size_bytes)": "torch.empty(size_bytes, dtype=torch.uint8)",
    "self.pinned.take(self._blocks[block].size_bytes)": "torch.empty(self._blocks[block].size_bytes, "
    "dtype=torch.uint8)",
}
SURVIVING = {
    "compute: self._issue for self._write_new": "a schedule itself lets a task of another stream wait for the compute "
    "stream's last task",
    "timeline: moved self.synchronize()": "spans are made behind it all the same, since a generator makes them",
    "timeline: False for True": "of zip, whose arguments have the same length in every schedule",
    "_stream: without "
    "self._streams[name].wait_event(self._start)": "what a schedule has on another stream waits for a task of the "
    "step, or for the compute stream's position, all the same",
}
"""Mutants that no check finds, and why."""
MOST_ERRORS = 1000
"""That a device reports one after the other."""
MUTANTS = [(module, mutant) for module in (accelerator, pinned) for mutant in code_mutants(module, ORDERED, REPLACED)]


def failed_check(module: ModuleType, mutant: CodeMutant) -> str:
    """Return the name of the first check that fails with a mutant in the module's place; empty if none does."""
    changed = mutant.load(module)
    changed.locks_pages = pinned.locks_pages  # type: ignore[attr-defined]  # as the device under test does
    with (
        patch("tests.helpers.devices.AcceleratorBackend", changed.AcceleratorBackend)
        if module is accelerator
        else patch("membench.backends.accelerator.PinnedMemory", changed.PinnedMemory)
    ):
        for check in CHECKS:
            try:
                check()
                synchronize(DEVICE)
            except (Exception, KeyboardInterrupt):
                settle()
                return check.__name__
            finally:
                delay(None)
    return ""


def settle() -> None:
    """Wait until all that a mutant has issued is done, so that no error of it is taken for one of the next."""
    for _ in range(MOST_ERRORS):
        with suppress(RuntimeError):
            synchronize(DEVICE)
            return
    raise AssertionError("the device has more errors than operations")


def test_the_checks_pass() -> None:
    for check in CHECKS:
        check()
    assert len(MUTANTS) > 80 and len(SURVIVING) <= 0.05 * len(MUTANTS)


@pytest.mark.parametrize(("module", "mutant"), [pytest.param(*each, id=each[1].name) for each in MUTANTS])
def test_a_mutant_is_found(module: ModuleType, mutant: CodeMutant) -> None:
    assert bool(failed_check(module, mutant)) is (mutant.name not in SURVIVING)
