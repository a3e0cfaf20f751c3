"""A machine and a limit of its memory as arguments: of simulated steps, and what does not go together."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

import membench
from membench.core import configuration
from membench.core.errors import InfeasibleSchedule, MembenchError
from membench.core.graph.schedule import LOAD_STREAM, STORE_STREAM, Load
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.machine import Machine
from membench.planning.host_memory.disk import on_disk_bytes
from tests.helpers.steps.disk import host_peak_bytes, layers


@pytest.fixture(autouse=True)
def small_blocks_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.planning.host_memory.disk.LEAST_BYTES", 1)


def step(**options: Any) -> Any:
    work = layers()
    given = {"strategy": "zero_infinity", "optimizer": "adamw", "backend": "simulated", "device": "rtx4090"}
    return membench.compile(work.module, work.loss, (work.inputs, work.targets), **{**given, **options})


def least_bytes() -> int:
    with pytest.raises(InfeasibleSchedule, match="host memory of 1 B is too small: .* raise host_memory") as found:
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
    found = membench.predict(work.module, work.loss, (work.inputs, work.targets), host_memory=limit_bytes, **given)
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


STRATEGIES = ["zero_offload", "zero_infinity", "ratel"]


def on_cluster(strategy: str, per_host: int, nodes: int = 1, **options: Any) -> membench.Prediction:
    """Replicas, each of which has all weights and states."""
    work = layers()
    cluster = Cluster(devices_per_host=per_host, device="rtx4090")
    return membench.predict(
        work.module, work.loss, (work.inputs, work.targets), cluster=cluster, nodes=nodes, strategy=strategy,
        parallel=None if per_host == 1 else {"dp": per_host * nodes}, optimizer="adamw", **options,
    )  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_ranks_of_a_host_share_its_memory_and_its_processor(strategy: str) -> None:
    slow = Machine("slow", 10**12, 1e5)  # so that updates are nearly all of a step
    alone, *shared = (on_cluster(strategy, 2 * number, machine=slow) for number in (1, 2, 4))
    for times, found in zip((2, 4), shared, strict=True):
        assert found.host_bytes == times * alone.host_bytes
        assert found.step_time_s == pytest.approx(times * alone.step_time_s, rel=0.05)
        assert found.allocated_bytes == alone.allocated_bytes
    further = on_cluster(strategy, 4, nodes=2, machine=slow)
    assert further.host_bytes == shared[0].host_bytes
    assert further.step_time_s == pytest.approx(shared[0].step_time_s, rel=0.05)


@pytest.mark.parametrize("per_host", [2, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_host_that_has_room_for_one_of_its_ranks_has_not_for_all(strategy: str, per_host: int) -> None:
    held = on_cluster(strategy, per_host).host_bytes
    assert on_cluster(strategy, per_host, machine=Machine("full", held, 1e11)).host_bytes == held
    assert on_cluster(strategy, per_host, host_memory=held).host_bytes == held
    small = Machine("small", held - 1, 1e11)
    with pytest.raises(InfeasibleSchedule, match=f"each of {per_host} ranks has of the host's, is too small"):
        on_cluster(strategy, per_host, machine=small)
    disk = replace(small, disk_bytes=10**12, disk_read_bytes_per_s=1e5, disk_write_bytes_per_s=1e5)
    found = on_cluster(strategy, per_host, machine=disk)
    assert found.host_bytes < held
    # twice the ranks in a machine of twice everything
    twice = replace(
        disk,
        **{field.name: 2 * getattr(disk, field.name) for field in fields(disk) if field.name not in ("name", "ranks")},
    )
    of_more = on_cluster(strategy, 2 * per_host, machine=twice)
    assert of_more.host_bytes == 2 * found.host_bytes
    assert of_more.step_time_s == pytest.approx(found.step_time_s, rel=0.01)
    of_slow_disk = replace(twice, disk_read_bytes_per_s=1e5, disk_write_bytes_per_s=1e5)
    assert on_cluster(strategy, 2 * per_host, machine=of_slow_disk).step_time_s > 1.5 * found.step_time_s


def test_states_that_kernels_read_in_host_memory_are_counted_and_fit_or_do_not() -> None:
    pytest.importorskip("bitsandbytes")
    with torch.device("meta"):
        module, inputs = nn.Linear(512, 512), torch.empty(2, 512)
    given: dict[str, Any] = {"cluster": Cluster(devices_per_host=4, device="rtx4090"), "optimizer": "paged_adamw"}
    for machine, fits in ((None, True), (Machine("small", 4 * 8 * 512**2 - 1, 1e11), False)):
        found = membench.predict(
            module, lambda output: output.sum(), (inputs, ()), parallel={"dp": 4}, machine=machine, **given
        )
        assert (found.host_bytes, found.fits) == (4 * 8 * 512**2, fits)


def test_devices_of_a_simulated_cluster_share_its_host() -> None:
    slow = Machine("slow", 10**12, 1e5)
    alone, four = (
        step(strategy="zero_offload", machine=slow, cluster=Cluster(devices_per_host=number)) for number in (1, 4)
    )
    assert four.step_time_s == pytest.approx(4 * alone.step_time_s, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"host_memory": "much"}, "host_memory: 'much' is not a size"),
        ({"machine": "laptop"}, "machine 'laptop' is not known.* are: desktop, .*dgx2"),
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
