"""A machine and a limit of its memory as arguments: of simulated steps, and what does not go together."""

from typing import Any

import pytest

import membench
from membench.core import configuration
from membench.core.errors import InfeasibleSchedule, MembenchError
from membench.core.schedule import LOAD_STREAM, STORE_STREAM, Load
from membench.planning.host_memory.disk import on_disk_bytes
from tests.helpers.disk import host_peak_bytes, layers


@pytest.fixture(autouse=True)
def small_blocks_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.planning.host_memory.disk.LEAST_BYTES", 1)


def step(**options: Any) -> Any:
    work = layers()
    given = {"strategy": "zero_infinity", "optimizer": "adamw", "backend": "simulated", "device": "rtx4090"}
    return membench.compile(work.module, work.loss, (work.inputs, work.targets), **{**given, **options})


def least_bytes() -> int:
    with pytest.raises(
        InfeasibleSchedule, match="host memory of 1 B is too small: .* raise host_memory"
    ) as found:
        step(host_memory=1)
    return found.value.needed_bytes


def test_what_does_not_fit_is_on_the_disk_and_takes_its_time() -> None:
    free = step()
    [run] = free.plan
    assert not on_disk_bytes(run.schedule)
    limited = step(host_memory=least_bytes())
    [moved] = limited.plan
    assert host_peak_bytes(moved.schedule) == least_bytes() < host_peak_bytes(run.schedule)
    assert on_disk_bytes(moved.schedule) > 0
    assert any(isinstance(item, Load) for item in moved.schedule.instructions)
    measured = limited.measure()
    assert measured.timelines[0].busy_s(LOAD_STREAM) > 0
    assert measured.timelines[0].busy_s(STORE_STREAM) > 0


def test_a_prediction_states_the_host_memory_that_is_left() -> None:
    work = layers()
    given: dict[str, Any] = {"device": "rtx4090", "strategy": "zero_infinity", "optimizer": "adamw"}
    free = membench.predict(work.module, work.loss, (work.inputs, work.targets), **given)
    limit_bytes = (least_bytes() + free.host_bytes) // 2
    found = membench.predict(
        work.module, work.loss, (work.inputs, work.targets), host_memory=limit_bytes, **given
    )
    assert 0 < found.host_bytes <= limit_bytes
    assert found.step_time_s >= free.step_time_s


def test_the_chosen_machine_updates_at_its_rate_and_has_its_memory() -> None:
    by_default, server, desktop = step(), step(machine="server"), step(machine="desktop")
    assert by_default.step_time_s == server.step_time_s < desktop.step_time_s
    small = membench.Machine("small", least_bytes(), 1e11, 10**9, 1e9, 1e9)
    [run] = step(machine=small).plan
    assert host_peak_bytes(run.schedule) == small.memory_bytes and on_disk_bytes(run.schedule)
    [run] = step(machine=small, host_memory="1 GB").plan
    assert not on_disk_bytes(run.schedule)


def test_a_prediction_is_in_the_chosen_machine() -> None:
    work = layers()
    given: dict[str, Any] = {"device": "rtx4090", "strategy": "zero_infinity", "optimizer": "adamw"}
    found = [
        membench.predict(work.module, work.loss, (work.inputs, work.targets), machine=machine, **given)
        for machine in (None, configuration.load("machine", "desktop"))
    ]
    assert found[0].step_time_s < found[1].step_time_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_memory": "much"}, "host_memory: 'much' is not a size"),
        ({"machine": "laptop"}, "there is no machine 'laptop'; choose one of desktop, dgx2"),
        (
            {"machine": "server", "backend": "cpu", "device": None},
            "machine are for backend='simulated', but the backend is 'cpu'",
        ),
        ({"disk": "."}, "disk is for a real step with a limit of host_memory"),
        (
            {"cuda_graph": True, "host_memory": "1 GB", "backend": "cuda", "device": None},
            "a CUDA graph does not contain work of the host",
        ),
        (
            {"shapes": "any", "host_memory": "1 GB", "backend": "cpu", "device": None, "optimizer": None},
            "one step alone can keep the optimizer's states",
        ),
        ({"disk": ".", "host_memory": "1 GB"}, "disk is for a real step with a limit of host_memory"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        step(**options)
