"""Steps on the device under test, checked against plain PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager

from membench.backends.cpu import Chaos
from membench.conformance import steps
from membench.conformance.results import Reference
from membench.core.graph.schedule import Schedule
from membench.steps.real.compiled_step import CompiledStep
from tests.helpers.devices import backend_of


@contextmanager
def step_of(case: Reference, schedule: Schedule, chaos: Chaos | None) -> Iterator[CompiledStep]:
    with steps.step_on(backend_of(schedule, chaos), case, schedule) as step:
        yield step


def check_results_and_peak(case: Reference, schedule: Schedule) -> None:
    steps.check_results_and_peak(case, schedule, backend_of)
