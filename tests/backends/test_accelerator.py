"""The stream protocol, on fake streams whose copies are as late as the waits allow."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from membench.backends.accelerator import AcceleratorBackend
from membench.backends.tensors import DeviceTensors
from membench.conformance.results import run_step
from membench.core.errors import MembenchError
from membench.core.graph.schedule import COMPUTE_STREAM as COMPUTE
from membench.core.graph.schedule import COPY_STREAM as COPY
from membench.core.graph.schedule import Schedule, Wait
from membench.execution.executor import BoundSchedule, execute
from membench.planning.builder import ScheduleBuilder
from membench.planning.parallel.exchange import Exchange, exchange_gradients
from membench.steps.plan import plan
from membench.steps.real.compiled_step import CompiledStep
from tests.helpers.emulator.fake_accelerator import FakeAccelerator, fake_accelerator
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import PLANS, random_reference
from tests.helpers.planning.toy import COLUMNS, ROWS, SIZE_BYTES, graph, migrating, value
from tests.helpers.steps.variants import EACH_VARIANT, VARIANTS

CPU = torch.device("cpu")
POISON = 0xFF


def _fill(tensors: DeviceTensors, block: int) -> None:
    tensors.as_bytes(block).fill_(POISON)


class PoisoningBackend(AcceleratorBackend):
    """Fills memory that is given back with NaN, so that a copy which still reads it is seen."""

    def __init__(self, schedule: Schedule, device: torch.device) -> None:
        super().__init__(schedule, device)
        self.poison = partial(_fill, self.tensors)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAccelerator]:
    with fake_accelerator(monkeypatch) as fake:
        yield fake


def run(backend: AcceleratorBackend, schedule: Schedule) -> torch.Tensor:
    backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))
    BoundSchedule(schedule, backend).issue(timed=False)
    return backend.tensors.tensor(value(3))


def test_a_mean_over_processes_is_taken_on_the_exchange_stream_between_two_waits(
    cuda: FakeAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def note(*arguments: object) -> None:
        cuda.calls.append((cuda.current.name, "all-reduce", ""))

    monkeypatch.setattr(dist, "all_reduce", note)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    toy = replace(graph(), gradients=(("weight", value(3)),))
    schedule = exchange_gradients(migrating(toy), Exchange.AS_MADE)
    run(AcceleratorBackend(schedule, CPU), schedule)
    produced, averaged = cuda.calls[-6][2], cuda.calls[-2][2]
    assert cuda.calls[-6:] == [
        ("compute", "record", produced),
        ("stream2", "wait", cuda.calls[0][2]),
        ("stream2", "wait", produced),
        ("stream2", "all-reduce", ""),
        ("stream2", "record", averaged),
        ("compute", "wait", averaged),
    ]


def test_one_offload_and_one_prefetch_make_exactly_these_calls(cuda: FakeAccelerator) -> None:
    schedule = migrating(graph())
    backend = AcceleratorBackend(schedule, CPU)
    run(backend, schedule)
    events = dict.fromkeys(name for _, _, name in cuda.calls if name)
    start, produced, left, second, here, back = events
    assert cuda.calls == [
        ("compute", "record", start),
        ("compute", "record", produced),
        ("stream1", "wait", start),
        ("stream1", "wait", produced),
        ("stream1", "copy", ""),
        ("stream1", "record", left),
        ("compute", "record", second),
        ("compute", "wait", left),
        ("stream1", "wait", second),
        ("compute", "record", here),
        ("stream1", "wait", here),
        ("stream1", "copy", ""),
        ("stream1", "record", back),
        ("compute", "wait", back),
    ]


def test_a_block_comes_back_as_it_left_step_after_step(cuda: FakeAccelerator) -> None:
    schedule = migrating(graph())
    backend = PoisoningBackend(schedule, CPU)
    once = torch.ones(ROWS, COLUMNS).exp()
    for _ in range(3):
        assert torch.equal(run(backend, schedule), once + once.exp())


def test_a_schedule_without_its_waits_computes_something_else(cuda: FakeAccelerator) -> None:
    """The fake can fail: without the waits, the copies are still in their queues."""
    schedule = migrating(graph())
    unsafe = replace(schedule, instructions=tuple(i for i in schedule.instructions if not isinstance(i, Wait)))
    once = torch.ones(ROWS, COLUMNS).exp()
    assert not torch.equal(run(PoisoningBackend(unsafe, CPU), unsafe), once + once.exp())


def test_the_steady_state_makes_no_events_streams_or_host_memory(cuda: FakeAccelerator) -> None:
    schedule = migrating(graph())
    backend = AcceleratorBackend(schedule, CPU)
    run(backend, schedule)
    made = cuda.events, len(cuda.streams), dict(cuda.locked_bytes)
    assert sum(cuda.locked_bytes.values()) == backend.pinned.size_bytes == SIZE_BYTES
    for _ in range(3):
        run(backend, schedule)
    assert (cuda.events, len(cuda.streams), cuda.locked_bytes) == made
    backend.close()
    assert not cuda.locked_bytes


def test_only_instructions_with_a_wait_record_an_event(cuda: FakeAccelerator) -> None:
    toy = graph()
    builder = ScheduleBuilder("test", toy, budget_bytes=None)
    for task in toy.tasks:
        builder.compute(task)
        builder.free_dead()
    schedule = builder.finish()
    run(AcceleratorBackend(schedule, CPU), schedule)
    assert [what for _, what, _ in cuda.calls] == ["record"]  # the step's start


def test_a_timed_step_has_a_span_for_each_instruction_with_its_stream(cuda: FakeAccelerator) -> None:
    schedule = migrating(graph())
    backend = AcceleratorBackend(schedule, CPU)
    for _ in range(2):
        backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))
        timeline = execute(schedule, backend)
        assert [span.stream for span in timeline.spans] == [COMPUTE, COPY, COMPUTE, COPY, COMPUTE]
        assert [span.instruction for span in timeline.spans] == [0, 2, 3, 7, 9]
        ends = [time for span in timeline.spans for time in (span.start_s, span.end_s)]
        assert ends == sorted(ends) and ends[0] > 0 and ends[-1] < timeline.step_time_s


def test_host_memory_that_cannot_be_locked_is_refused(cuda: FakeAccelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = migrating(graph())
    monkeypatch.setattr(cuda, "cudaHostRegister", lambda *_: 2)
    with pytest.raises(MembenchError, match=r"did not lock 65,536 bytes .*ulimit -l"):
        run(AcceleratorBackend(schedule, CPU), schedule)


@pytest.mark.parametrize("strategy", EACH_VARIANT)
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layers=PLANS, seed=st.integers(0, 1000))
def test_random_networks_are_exact_under_every_strategy(
    strategy: str, layers: list[tuple[str, int, int]], seed: int
) -> None:
    case = random_reference(layers, seed)
    work = case.work
    schedule = plan(case.captured.graph, VARIANTS[strategy], COST, None)
    with pytest.MonkeyPatch.context() as patch, fake_accelerator(patch):
        step = CompiledStep(work, case.captured, schedule, PoisoningBackend(schedule, CPU))
        for _ in range(2):
            results = run_step(work, lambda: step(work.inputs, work.targets), case.buffers)
            case.check(results, rounding=schedule.rounding)
        step.close()
