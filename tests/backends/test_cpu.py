"""Real threads: copies overlap, errors come back, freed memory is poisoned in chaos."""

import gc
import threading
import weakref
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from membench.backends.cpu import Chaos, CpuBackend, copy_bytes
from membench.core.graph.schedule import Schedule
from membench.execution.executor import BoundSchedule, execute
from membench.execution.measurement import cpu_peak_bytes
from membench.planning.builder import ScheduleBuilder
from membench.planning.parallel.exchange import Exchange, exchange_gradients
from membench.planning.pool import FixedPool
from tests.helpers.planning.toy import COLUMNS, ROWS, SIZE_BYTES, graph, migrating, value


def run(backend: CpuBackend, schedule: Schedule) -> torch.Tensor:
    backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))
    execute(schedule, backend)
    return backend.tensors.tensor(value(3))


def exchanging() -> Schedule:
    """Average the result over processes on a stream of its own."""
    toy = replace(graph(), gradients=(("weight", value(3)),))
    return exchange_gradients(migrating(toy), Exchange.AS_MADE)


@pytest.mark.parametrize("chaos", [None, Chaos(seed=1)])
def test_a_block_comes_back_as_it_left(chaos: Chaos | None) -> None:
    schedule = migrating(graph())
    backend = CpuBackend(schedule.graph, chaos=chaos)
    once = torch.ones(ROWS, COLUMNS).exp()
    assert torch.equal(run(backend, schedule), once + once.exp())
    backend.close()


def test_host_buffers_are_not_device_memory() -> None:
    schedule = migrating(graph())
    backend = CpuBackend(schedule.graph)
    backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))
    assert cpu_peak_bytes(lambda: execute(schedule, backend)) == 3 * SIZE_BYTES
    backend.close()


def test_memory_of_other_streams_is_recorded_where_that_is_asked_for() -> None:
    builder = ScheduleBuilder("test", graph(), budget_bytes=None)
    for task in graph().tasks:
        builder.compute(task, stream="other")
    schedule = builder.finish()
    backend = CpuBackend(schedule.graph)
    backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))
    assert cpu_peak_bytes(lambda: execute(schedule, backend), [backend]) == 3 * SIZE_BYTES
    assert backend.recorder is None
    backend.close()


@pytest.mark.parametrize("copied", [False, True])
def test_work_may_read_what_another_stream_has_yet_to_make(copied: bool) -> None:
    builder = ScheduleBuilder("test", graph(), budget_bytes=None)
    for task in graph().tasks:
        builder.compute(task, stream="other")
        for block in task.creates if copied else ():
            builder.offload(block)
    backend = CpuBackend(graph(), chaos=Chaos(seed=1, longest_delay_s=0.02))
    once = torch.ones(ROWS, COLUMNS).exp()
    assert torch.equal(run(backend, builder.finish()), once + once.exp())
    backend.close()


def test_what_a_pool_leaves_unused_is_device_memory_and_is_given_back() -> None:
    schedule = migrating(graph(), FixedPool(10 * SIZE_BYTES))
    backend = CpuBackend(schedule.graph)
    backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))

    def two_steps() -> None:
        for _ in range(2):
            execute(schedule, backend)
            backend.tensors.release(3)  # the result

    assert cpu_peak_bytes(two_steps) == 10 * SIZE_BYTES
    backend.close()


def test_what_runs_a_schedule_goes_with_its_last_reference() -> None:
    schedule = migrating(graph())
    backend = CpuBackend(schedule.graph)
    program, kept = BoundSchedule(schedule, backend), weakref.ref(backend)
    gc.disable()
    try:
        del program, backend
        assert kept() is None
    finally:
        gc.enable()


def test_chaos_poisons_what_is_given_back() -> None:
    schedule = migrating(graph())
    backend = CpuBackend(schedule.graph, chaos=Chaos(seed=1))
    run(backend, schedule)
    kept = backend.tensors.tensor(value(3))
    backend.free(3)
    assert torch.isnan(kept).all()
    backend.close()


def test_an_error_on_another_stream_reaches_the_caller() -> None:
    toy = graph("aten.no_such_operator.default")
    with pytest.raises(AttributeError, match="no_such_operator"):
        CpuBackend(toy)
    exchanged = exchanging()
    backend = CpuBackend(exchanged.graph)
    with pytest.raises(ValueError, match="process group"):  # none was made
        run(backend, exchanged)
    backend.close()


def test_jobs_of_another_stream_run_in_parallel_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    waited: list[bool] = []
    monkeypatch.setattr(dist, "all_reduce", lambda *_: waited.append(released.wait(timeout=30)))
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    backend = CpuBackend(graph())
    backend.begin(timed=True)
    backend.tensors.hold(0, torch.ones(ROWS, COLUMNS))
    exchange = backend.all_reduce(0, None, "exchange")
    released.set()
    backend.wait("compute", exchange)
    assert waited == [True]
    backend.close()


@pytest.mark.parametrize("size_bytes", [0, 5, 4 * 2**20, 9 * 2**20 + 5])
def test_a_block_is_copied_whole_whatever_its_size(size_bytes: int) -> None:
    source = torch.arange(size_bytes, dtype=torch.int64).remainder(251).to(torch.uint8)
    target = torch.full((size_bytes,), 255, dtype=torch.uint8)
    copy_bytes(target, source)
    assert target.equal(source)
