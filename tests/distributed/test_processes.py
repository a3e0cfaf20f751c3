"""Data parallelism without a second process: shares, refusals, and the last of several micro-batches."""

import pickle

import pytest
import torch
from torch import nn

import membench
from membench.capture.capture import Captures
from membench.core.errors import ExchangeFailed, InfeasibleSchedule, MembenchError
from membench.core.graph.schedule import AllReduce, RepeatedSchedule
from membench.core.libraries.distributed import Processes, from_first, join, joined, launched
from membench.core.step.workload import Workload
from membench.planning.parallel.exchange import Exchange, exchange_in_last_run
from membench.steps.plan import plan
from membench.strategies.eager import Eager
from tests.helpers.distributed.distributed_training import CRITERION, batch, network
from tests.helpers.networks.contract import COST


@pytest.fixture
def work() -> Workload:
    inputs, targets = batch()
    return Workload("tiny", network(), CRITERION, (inputs,), (targets,))


def test_shares_are_equal_and_make_up_the_batch(work: Workload) -> None:
    shares = [work.share(process, 4) for process in range(4)]
    assert {share.batch_size for share in shares} == {2}
    assert not any(share.accumulates for share in shares)
    for name in ("inputs", "targets"):
        parts = [getattr(share, name)[0] for share in shares]
        assert torch.equal(torch.cat(parts), getattr(work, name)[0])
    with pytest.raises(MembenchError, match="a batch of 8 cannot be divided into 3 equal shares; use a multiple of 3"):
        work.share(0, 3)


@pytest.mark.parametrize("count", [1, 3])
def test_only_the_last_of_several_runs_exchanges(work: Workload, count: int) -> None:
    schedule = plan(Captures(work).graph_at(2), Eager(), COST, None)
    parts = exchange_in_last_run((RepeatedSchedule(schedule, count),), Exchange.AS_MADE)
    assert sum(part.count for part in parts) == count
    exchanging = [any(isinstance(i, AllReduce) for i in part.schedule.instructions) for part in parts]
    assert exchanging == [False] * (len(parts) - 1) + [True]
    assert parts[-1].count == 1


def test_one_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched() == joined() == Processes(0, 1)
    with join("cpu", 1):
        assert joined() == Processes(0, 1)
    assert from_first(lambda: "plan", "the plan") == "plan"


def test_simulation_needs_no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(MembenchError, match="backend=simulated does not use torchrun"), join("simulated", 1):
        pass


def test_an_exchange_needs_processes_and_a_name() -> None:
    with pytest.raises(
        MembenchError, match="no group of processes to exchange gradients with; start them with torchrun"
    ):
        membench.compile(network(), CRITERION, batch(), exchange="as_made")
    with pytest.raises(MembenchError, match="exchange 'never' is not known.* are: as_made, at_end"):
        membench.compile(network(), CRITERION, batch(), exchange="never")


def test_a_simulated_cluster_is_as_fast_as_its_devices_at_most() -> None:
    module = nn.Sequential(nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    inputs, targets = torch.randn(64, 16, 64, 64), torch.randint(16, (64,))

    def images_per_s(cluster: str) -> float:
        step = membench.compile(
            module, CRITERION, (inputs, targets), backend="simulated", device="k40m", cluster=cluster
        )
        return step.measure().images_per_s

    assert images_per_s("one") < images_per_s("modnn_k40x4") < 4 * images_per_s("one")
    assert images_per_s("layrub_two_nodes") < images_per_s("modnn_k40x4")


def test_errors_travel_between_processes() -> None:
    refusal = InfeasibleSchedule(task="one", needed_bytes=3, budget_bytes=1, lower_bound_bytes=2)
    for error in (refusal, ExchangeFailed("weights", 1, 2), MembenchError("why")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
