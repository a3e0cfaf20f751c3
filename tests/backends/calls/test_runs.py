from collections import Counter

import pytest
import torch

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.cpu import CpuBackend
from membench.backends.tensors import DeviceTensors
from membench.core.graph.schedule import Compute, Free, Schedule
from membench.core.graph.task_graph import Task
from membench.execution.executor import BoundSchedule
from membench.execution.measurement import cpu_peak_bytes
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import FixedPool
from tests.helpers.emulator.fake_accelerator import fake_accelerator
from tests.helpers.planning.toy import COLUMNS, ROWS, SIZE_BYTES, graph, migrating, value

CPU = torch.device("cpu")
ONCE = torch.ones(ROWS, COLUMNS).exp()


def on_demand() -> Schedule:
    builder = ScheduleBuilder("test", graph(), budget_bytes=None)
    for task in graph().tasks:
        builder.compute(task)
        builder.free_dead()
    return builder.finish()


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count tasks that run one by one."""
    counted: Counter[str] = Counter()
    run = DeviceTensors.run

    def counting(tensors: DeviceTensors, task: Task) -> None:
        counted[task.name] += 1
        run(tensors, task)

    monkeypatch.setattr(DeviceTensors, "run", counting)
    return counted


def issue(program: BoundSchedule, backend: CpuBackend, *, timed: bool) -> torch.Tensor:
    backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))
    program.issue(timed=timed)
    result = backend.tensors.tensor(value(3)).clone()
    backend.tensors.release(3)
    return result


@pytest.mark.parametrize("schedule", [on_demand(), migrating(graph(), FixedPool(10 * SIZE_BYTES))])
def test_from_the_second_step_on_tasks_are_issued_in_runs_except_under_a_clock(
    schedule: Schedule, single: Counter[str]
) -> None:
    backend = CpuBackend(schedule.graph)
    program = BoundSchedule(schedule, backend)
    once_each = Counter(task.name for task in graph().tasks)
    expected = ONCE + ONCE.exp()
    for timed in (False, True):
        single.clear()
        assert torch.equal(issue(program, backend, timed=timed), expected)
        assert single == once_each
    single.clear()
    assert torch.equal(issue(program, backend, timed=False), expected)
    assert sum(single.values()) < len(once_each)
    backend.close()


@pytest.mark.parametrize(("until", "left"), [(5, {3}), (4, {2, 3}), (3, {1, 2, 3})])
def test_a_run_holds_and_frees_what_its_instructions_do(until: int, left: set[int]) -> None:
    schedule = on_demand()
    assert [type(each) for each in schedule.instructions] == [Compute, Compute, Compute, Free, Free]
    backend = CpuBackend(schedule.graph)
    issue(BoundSchedule(schedule, backend), backend, timed=False)
    backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))
    run = backend.run_of([each for each in schedule.instructions[:until] if isinstance(each, Compute | Free)])
    assert cpu_peak_bytes(run) == 3 * SIZE_BYTES
    assert {block for block in (1, 2, 3) if backend.tensors.is_resident(block)} == left
    backend.close()


def test_a_task_that_a_stream_waits_for_ends_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_accelerator(monkeypatch) as fake:
        schedule = migrating(graph())
        backend = AcceleratorBackend(schedule, CPU)
        program = BoundSchedule(schedule, backend)
        steps = []
        for _ in range(2):
            fake.calls.clear()
            backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))
            program.issue(timed=False)
            assert torch.equal(backend.tensors.tensor(value(3)), ONCE + ONCE.exp())
            steps.append([*fake.calls])
        assert steps[0] == steps[1]
        backend.close()
