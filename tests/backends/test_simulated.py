"""Virtual clocks: what overlaps, what waits."""

from dataclasses import replace

import pytest

from membench.backends.mailbox import Mailbox
from membench.backends.simulated import SimulatedBackend
from membench.codecs.rows import csr
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.graph.schedule import (
    Compute,
    Decode,
    Encode,
    Free,
    Instruction,
    Offload,
    Prefetch,
    Schedule,
    Synchronize,
    Wait,
)
from membench.core.graph.task_graph import RECOMPUTED_SUFFIX, Block, Kind, Phase, Role, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.execution.executor import execute
from tests.helpers.planning.costs import OneEngineCost, UnitCost


def graph() -> TaskGraph:
    blocks = tuple(Block(i, f"block{i}", 3, Role.ACTIVATION, 0) for i in range(3))
    tasks = tuple(Task(i, f"task{i}", Kind.OTHER, Phase.FORWARD, 0, (), (i,), (i,)) for i in range(3))
    return TaskGraph("toy", 1, blocks, tasks, ("layer",))


def step_time_s(*program: Instruction, cost: CostModel | None = None) -> float:
    schedule = Schedule("test", graph(), program, 0)
    timeline = execute(schedule, SimulatedBackend(schedule.graph, cost or UnitCost()))
    issued = [i for i, item in enumerate(program) if isinstance(item, Compute | Offload | Prefetch | Encode | Decode)]
    assert [span.instruction for span in timeline.spans] == issued
    return timeline.step_time_s


@pytest.mark.parametrize(("issue_s", "waits_s"), [(0.0, 0.0), (2.5, 2.5), (4.0, 4.0 + 2 * (4.0 - 2.5))])
def test_kernels_wait_for_a_slower_host(issue_s: float, waits_s: float) -> None:
    class SlowHost(UnitCost):
        def task_issue_time_s(self, task: Task) -> float:
            return issue_s

    schedule = Schedule("test", graph(), tuple(map(Compute, range(3))), 0)
    timeline = execute(schedule, SimulatedBackend(schedule.graph, SlowHost()))
    assert timeline.host_waits_s == pytest.approx(waits_s)
    assert timeline.step_time_s == pytest.approx(3 * 2.5 + waits_s)


def test_a_copy_overlaps_what_comes_after_it() -> None:
    assert step_time_s(Compute(0), Wait("copy", 0), Offload(0), Compute(1)) == pytest.approx(2.5 + 3)


def test_a_copy_that_takes_cores_delays_kernels_unless_they_wait() -> None:
    class SharedCores(UnitCost):
        def copy_delay_s(self, size_bytes: int) -> float:
            return 0.5 * self.offload_time_s(size_bytes)

    copied = (Compute(0), Wait("copy", 0), Offload(0))
    assert step_time_s(*copied, Compute(1), cost=SharedCores()) == pytest.approx(2.5 + 0.5 + (1.5 - 0.5) + 2)
    assert step_time_s(*copied, Wait("compute", 2), Compute(1), cost=SharedCores()) == pytest.approx(8)


def test_a_wait_and_a_synchronize_expose_the_copy() -> None:
    copied = (Compute(0), Wait("copy", 0), Offload(0))
    assert step_time_s(*copied, Wait("compute", 2), Compute(1)) == pytest.approx(2.5 + 3 + 2.5)
    assert step_time_s(*copied, Synchronize(), Compute(1)) == pytest.approx(2.5 + 3 + 2.5)


def test_kernels_of_two_streams_overlap_only_in_their_launch() -> None:
    assert step_time_s(Compute(0), Compute(1)) == pytest.approx(5.0)
    assert step_time_s(Compute(0), Compute(1, "other")) == pytest.approx(4.5)


def test_copies_of_both_directions_share_one_engine_without_full_duplex() -> None:
    both = (Offload(0, "out"), Prefetch(1, "back"))
    assert step_time_s(*both) == pytest.approx(3.0)
    assert step_time_s(*both, cost=OneEngineCost()) == pytest.approx(6.0)


class HalfTheDevice(UnitCost):
    """Neither a task nor a codec keeps more than half of the device busy."""

    def task_share(self, task: Task) -> float:
        return 0.5

    def codec_share(self, codec: ActivationCodec) -> float:
        return 0.5


def test_kernels_that_leave_room_overlap() -> None:
    assert step_time_s(Compute(0), Compute(1, "other"), cost=HalfTheDevice()) == pytest.approx(2.5)
    three = (Compute(0), Compute(1, "second"), Compute(2, "third"))
    assert step_time_s(*three, cost=HalfTheDevice()) == pytest.approx(4.5)


def test_a_codec_overlaps_with_kernels_as_far_as_it_leaves_room() -> None:
    encode, other = Encode(0, 1, csr(), "codec"), Encode(0, 1, csr(), "other")
    assert step_time_s(encode, Compute(1)) == pytest.approx(6.0 + 2.0)
    assert step_time_s(encode, Compute(1), cost=HalfTheDevice()) == pytest.approx(6.0)
    assert step_time_s(encode, other, cost=HalfTheDevice()) == pytest.approx(6.0)
    assert step_time_s(encode, other, Decode(0, 1, csr(), "codec")) == pytest.approx(18.0)
    assert step_time_s(Encode(0, 1, csr(), "compute"), Compute(1)) == pytest.approx(8.5)


class SlowHostCost(UnitCost):
    copy_issue_time_s = 1.0

    def task_issue_time_s(self, task: Task) -> float:
        return 3.0


def test_a_device_waits_for_a_host_that_issues_more_slowly_than_it_computes() -> None:
    copied = (Compute(0), Wait("copy", 0), Offload(0), Compute(1))
    assert step_time_s(Compute(0), Compute(1), cost=SlowHostCost()) == pytest.approx(6 + 2.5)
    assert step_time_s(*copied, cost=SlowHostCost()) == pytest.approx(7 + 2.5)
    assert step_time_s(*copied, Wait("compute", 2), Compute(2), cost=SlowHostCost()) == pytest.approx(10 + 2.5)


def test_a_host_that_waits_between_passes_issues_nothing_ahead() -> None:
    class Timed(SlowHostCost):
        waits_between_passes = True

    forward, backward = graph().tasks[0], replace(graph().tasks[1], index=1, phase=Phase.BACKWARD)
    again = replace(graph().tasks[2], index=2, name="task2" + RECOMPUTED_SUFFIX)
    for cost, expected_s in ((SlowHostCost(), 9 + 2.5), (Timed(), 3 + 2.5 + 6 + 2.5)):
        backend = SimulatedBackend(graph(), cost)
        backend.begin(timed=True)
        for task in (forward, again, backward):
            backend.compute(task, "compute")
        backend.end()
        assert backend.timeline((0, 1, 2)).step_time_s == pytest.approx(expected_s)


def test_a_host_that_waits_between_passes_waits_for_messages() -> None:
    class Timed(SlowHostCost):
        waits_between_passes = True

    received = replace(graph().tasks[0], collective=Collective(CollectiveKind.RECEIVE, 8, "pp", "features", -1))
    for cost, expected_s in ((SlowHostCost(), 20 + 2.5), (Timed(), 20 + 3 + 2.5)):
        mailbox = Mailbox(1)
        mailbox.post("features", 20.0)
        backend = SimulatedBackend(graph(), cost, mailbox=mailbox)
        backend.begin(timed=True)
        backend.wait("compute", backend.compute(received, "messages"))
        backend.compute(graph().tasks[1], "compute")
        backend.end()
        assert backend.timeline((0, 1)).step_time_s == pytest.approx(expected_s)


def test_memory_costs_no_time() -> None:
    assert step_time_s(Compute(0), Free(0)) == pytest.approx(2.5)
