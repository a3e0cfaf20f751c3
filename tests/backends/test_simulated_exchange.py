"""Exchanges on virtual clocks: stages, their queues, and shared links."""

from dataclasses import replace

import pytest

from membench.backends.simulated import SimulatedBackend
from membench.core.configuration import load
from membench.core.graph.schedule import AllReduce, Compute, Instruction, Offload, Prefetch, Schedule, Synchronize, Wait
from membench.core.graph.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.cost_model import CostModel
from membench.core.hardware.device import DeviceProfile
from membench.execution.executor import execute
from tests.helpers.planning.costs import OneEngineCost, UnitCost

SIZE_BYTES = 8
COMPUTED_S = 2.5
FOUR = Cluster(devices_per_host=4, devices_per_link=4, core_bytes_per_s=10 * SIZE_BYTES)
"""On which a block takes 8 s out of each, 0.5 s to add, and 8 s back."""


def step_time_s(*program: Instruction, cluster: Cluster = FOUR, cost: CostModel | None = None) -> float:
    blocks = tuple(Block(i, f"block{i}", SIZE_BYTES, Role.WEIGHT_GRADIENT, 0) for i in range(3))
    tasks = tuple(Task(i, f"task{i}", Kind.OTHER, Phase.BACKWARD, 0, (), (i,), (i,)) for i in range(3))
    schedule = Schedule("test", TaskGraph("toy", 1, blocks, tasks, ("layer",)), program, 0)
    backend = SimulatedBackend(schedule.graph, cost or UnitCost(), cluster)
    timeline = execute(schedule, backend)
    assert all(span.start_s <= span.end_s <= timeline.step_time_s for span in timeline.spans)
    return timeline.step_time_s


def test_a_device_of_its_own_exchanges_in_no_time() -> None:
    assert step_time_s(Compute(0), AllReduce(0), cluster=Cluster()) == COMPUTED_S


def test_a_gradient_goes_out_is_added_and_comes_back() -> None:
    assert step_time_s(Compute(0), Wait("exchange", 0), AllReduce(0)) == COMPUTED_S + 8 + 0.5 + 8


def test_more_cores_add_faster_until_memory_is_the_limit() -> None:
    for cores, memory_bytes_per_s, seconds in ((1, 1000, 0.5), (2, 1000, 0.25), (4, 10 * SIZE_BYTES, 0.5)):
        cluster = Cluster(
            devices_per_host=4,
            cores=cores,
            core_bytes_per_s=10 * SIZE_BYTES,
            host_memory_bytes_per_s=memory_bytes_per_s,
        )
        assert step_time_s(AllReduce(0), cluster=cluster) == 8 + seconds + 8


def test_the_next_gradient_goes_out_while_the_first_is_added_and_comes_back() -> None:
    both = (AllReduce(0), AllReduce(1))
    assert step_time_s(*both) == 2 * 8 + 0.5 + 8
    assert step_time_s(*both, cost=OneEngineCost()) == 2 * (8 + 0.5 + 8)


def test_hosts_pass_a_gradient_around_a_ring() -> None:
    three = Cluster(hosts=3, network_bytes_per_s=1.0, network_latency_s=0.25)
    assert step_time_s(AllReduce(0), cluster=three) == pytest.approx(8 + 4 * (SIZE_BYTES / 3 + 0.25) + 8)


def test_on_one_device_each_other_gradient_passes_the_link_once_in_each_direction() -> None:
    alone_s = SIZE_BYTES / 4  # a device that copies by itself has the whole link
    assert step_time_s(AllReduce(0, root=0)) == (3 + 3 + 1 + 3) * alone_s
    own_links = Cluster(devices_per_host=4)
    assert step_time_s(AllReduce(0, root=0), cluster=own_links) == (1 + 3 + 1 + 1) * SIZE_BYTES
    hosts = Cluster(hosts=2, network_bytes_per_s=1.0)
    assert step_time_s(AllReduce(0, root=0), cluster=hosts) == (1 + 1 + 1 + 1 + 1 + 1) * SIZE_BYTES


def test_a_copy_does_not_wait_for_a_gradient_that_comes_back_later() -> None:
    slow = Cluster(hosts=2, network_bytes_per_s=0.1)
    exchanged_s = 8 + 80 + 8
    program = (AllReduce(0), Prefetch(1), Wait("compute", 1), Compute(1))
    assert step_time_s(*program, cluster=slow) == exchanged_s
    late = (AllReduce(0), Offload(1), Prefetch(1), *(Offload(2) for _ in range(20)))
    assert step_time_s(*late, cluster=slow) == 8 + 22 * 8


def test_synchronize_does_not_wait_for_the_exchange() -> None:
    exchanged_s = COMPUTED_S + 8 + 0.5 + 8
    program = (Compute(0), Wait("exchange", 0), AllReduce(0), Synchronize(), Compute(1))
    assert step_time_s(*program) == exchanged_s
    assert step_time_s(*program, *(Compute(2) for _ in range(9))) == 11 * COMPUTED_S


def test_devices_that_share_a_link_have_their_part_of_its_rate() -> None:
    device: DeviceProfile = load("device", "k40m")
    assert Cluster(devices_per_host=4, device=device).loaded == device
    loaded = replace(FOUR, device=device).loaded
    assert loaded.host_to_device_bytes_per_s == device.host_to_device_bytes_per_s / 4
    assert loaded.device_to_host_bytes_per_s == device.device_to_host_bytes_per_s / 4
    assert FOUR.devices == 4


@pytest.mark.parametrize("root", [None, 0])
def test_devices_that_reach_each_other_average_by_an_all_reduce(root: int | None) -> None:
    cluster = Cluster(devices_per_host=4, peer_bytes_per_s=2.0, core_bytes_per_s=1e-9)
    assert step_time_s(AllReduce(0, root), cluster=cluster) == pytest.approx(2 * 3 / 4 * SIZE_BYTES / 2.0)
    two_hosts = replace(cluster, hosts=2, network_bytes_per_s=0.1)
    assert step_time_s(AllReduce(0, root), cluster=two_hosts) > 10 * step_time_s(AllReduce(0, root), cluster=cluster)
