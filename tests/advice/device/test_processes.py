"""Processes that plan: one whose memory grows goes on, and one that is ended from outside is a sentence."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from membench.advice.device.processes import Planners
from membench.advice.pool.workers import TooSlow, Urgency
from membench.capture.capture import Captures
from membench.core.errors import MembenchError
from membench.core.step.workload import Workload
from membench.planning.rewrites.micro_batch import GraphAt

GROWTH_BYTES = 400_000_000


@pytest.fixture
def planners() -> Iterator[Planners]:
    module = nn.Linear(2, 3)
    workload = Workload("linear", module, nn.functional.cross_entropy, (torch.randn(4, 2),), (torch.arange(4) % 3,))
    with Planners(lambda size, _: Captures(workload.with_batch(size)), processes=1) as made:
        made.start()
        yield made


@pytest.mark.slow
def test_a_process_whose_memory_grows_goes_on(planners: Planners) -> None:
    def grow(_: GraphAt) -> int:
        import builtins

        builtins.kept = b"1" * GROWTH_BYTES  # type: ignore[attr-defined]
        time.sleep(1.5)  # such a check is made once in a second
        return os.getpid()

    processes = {planners.run(grow, 4), planners.run(lambda _: os.getpid(), 4), planners.run(grow, 4)}
    assert len(processes) == 1
    assert planners.run(lambda graph_at: len(graph_at(2).tasks), 4) > 1


@pytest.mark.slow
def test_a_process_that_is_ended_from_outside_is_a_sentence(planners: Planners) -> None:
    def end(_: GraphAt) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(MembenchError, match="ended from outside"):
        planners.run(end, 4)


@pytest.mark.slow
def test_a_job_that_takes_too_long_is_ended_and_others_run(planners: Planners) -> None:
    def endless(_: GraphAt) -> None:
        while True:
            pass

    def endless_outside_python(_: GraphAt) -> None:
        sum(range(1 << 60))

    planners.graph(4, 4)
    first = planners.run(lambda _: os.getpid(), 4, Urgency.LEVER)
    planners.limit(1.5)
    with pytest.raises(TooSlow):
        planners.run(endless, 4)
    assert planners.run(lambda _: os.getpid(), 4, Urgency.LEVER) == first
    planners.limit(3.0)
    with pytest.raises(TooSlow):
        planners.run(endless_outside_python, 4)
    assert planners.run(lambda _: os.getpid(), 4, Urgency.LEVER) != first
    planners.limit(0.0)
    with pytest.raises(TooSlow):  # there is no time left
        planners.run(lambda _: os.getpid(), 4)
    assert planners.run(lambda graph_at: len(graph_at(4).tasks), 4, Urgency.LEVER) > 1


@pytest.mark.slow
def test_the_most_urgent_job_gets_a_process_first(planners: Planners) -> None:
    done: list[Urgency] = []

    def run(urgency: Urgency, seconds: float) -> None:
        planners.run(lambda _: time.sleep(seconds), 4, urgency)
        done.append(urgency)

    planners.graph(4, 4)
    first = threading.Thread(target=run, args=(Urgency.METHOD, 1.0))
    first.start()
    time.sleep(0.5)  # it has the process
    later = [threading.Thread(target=run, args=(urgency, 0.0)) for urgency in reversed(Urgency)]
    for thread in later:
        thread.start()
        time.sleep(0.02)
    for thread in (first, *later):
        thread.join()
    assert done == [Urgency.METHOD, *Urgency]
