"""Work of an accelerator that is late, and the step that offloads and prefetches while it is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.cpu import Chaos
from membench.conformance.steps import check_exact
from membench.core.graph.schedule import COMPUTE_STREAM
from membench.steps.real.compiled_step import CompiledStep
from tests.helpers import devices
from tests.helpers.devices import delay
from tests.helpers.emulator import stall
from tests.helpers.emulator.accelerator_schedules import case, copying
from tests.helpers.steps.checks import step_of

LATE = Chaos(seed=0, longest_delay_s=0.001)
VERY_LATE = Chaos(seed=0, longest_delay_s=0.01)


def each_lateness() -> Iterator[Chaos | None]:
    """Make the compute stream's work late, then that of all others, then any at random."""
    for is_late in (COMPUTE_STREAM.__eq__, COMPUTE_STREAM.__ne__):
        with late_work(is_late):
            yield None
    yield LATE


@contextmanager
def late_work(is_late: Callable[[str], bool]) -> Iterator[None]:
    """Keep streams of these names busy before each of their tasks and copies, and before memory is given out."""
    issue, allocate = devices.AcceleratorBackend._issue, devices.AcceleratorBackend._allocate

    def issue_late(self: AcceleratorBackend, name: str, work: Callable[..., object], *args: Any) -> object:
        def late(*given: Any) -> object:
            stall(0.0004)
            return work(*given)

        return issue(self, name, late if is_late(name) else work, *args)

    def allocate_late(self: AcceleratorBackend, block: int) -> None:
        if is_late(COMPUTE_STREAM):
            stall(0.0004)
        allocate(self, block)

    with patch.multiple(devices.AcceleratorBackend, _issue=issue_late, _allocate=allocate_late):
        yield


@contextmanager
def copying_step(chaos: Chaos | None) -> Iterator[CompiledStep]:
    """Yield a step that offloads and prefetches, and has run twice."""
    with step_of(case(), copying(), None) as step:
        for _ in range(2):
            check_exact(case(), step)
        delay(chaos)
        yield step
        delay(None)


def check_ended_by(error: type[BaseException], step: CompiledStep) -> None:
    try:
        step(step.workload.inputs, step.workload.targets)
    except error:
        return
    raise AssertionError(f"{error.__name__} has not ended the step")
