"""An update that replicas divide: the largest part is held and run, and all weights are exchanged behind it."""

import pytest
import torch
from torch import nn

import membench
from membench.capture.capture import capture
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.workload import Workload
from membench.planning.parallel.partitioned_update import partitioned
from membench.steps.parallel.ranks import ranks_of
from membench.steps.predict import Predictor
from membench.strategies.base import find_strategy
from tests.helpers.updates import captured

WIDTH, LAYERS = 64, 6
ADAM = membench.WeightUpdate(torch.optim.Adam)


def module() -> nn.Module:
    layers = [each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 8 * WIDTH))


def predictor(
    strategy: str = "pytorch",
    budget_bytes: int | None = None,
    update: membench.WeightUpdate | None = ADAM,
    **options: object,
) -> Predictor:
    with torch.device("meta"):
        network, inputs = module(), torch.empty(8, WIDTH)
        work = Workload(
            "layers", network, nn.CrossEntropyLoss(), (inputs,), (torch.empty(8, dtype=torch.long),)
        )
    cluster = configuration.load("cluster", "dgx_h100")
    ranks = ranks_of(network, cluster, **{"parallel": {"dp": 8}, **options})  # type: ignore[arg-type]
    return Predictor(work, find_strategy(strategy)(), budget_bytes, update, ranks=ranks)


def states_bytes(found: Predictor) -> int:
    return found.on(configuration.load("device", "h100")).parts_bytes["optimizer state"]


def test_a_rank_holds_the_states_of_its_part_alone() -> None:
    """The last layer has more weights than all others together: the rank that has it has nothing else."""
    weights = 8 * WIDTH * WIDTH
    assert states_bytes(predictor(partition_optimizer=True)) == pytest.approx(2 * 4 * weights, rel=0.01)
    all_weights = LAYERS * (WIDTH * WIDTH + WIDTH) + weights + 8 * WIDTH
    assert states_bytes(predictor()) == pytest.approx(2 * 4 * all_weights, rel=0.01)


def test_all_weights_are_gathered_behind_the_update() -> None:
    graph = predictor(partition_optimizer=True).graph
    last = graph.tasks[-1]
    assert last.collective is not None
    weights = sum(weight.numel() for weight in module().parameters())
    assert (last.collective.axis, last.collective.size_bytes) == ("dp", 4 * weights)
    assert len(last.writes) == 2 * (LAYERS + 1)
    assert "weights:all-gather" not in {task.name for task in predictor().graph.tasks}


def test_parts_are_as_equal_as_whole_weights_allow() -> None:
    with torch.device("meta"):
        inputs = torch.empty(4, 8)
        work = Workload(
            "two", nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.MSELoss(), (inputs,), (inputs,)
        )
    update = partitioned(captured("sgd"), "dp", 2)(capture(work).graph)
    assert sorted(name for task in update.tasks[:-1] for name in task.weights) == ["0.bias", "0.weight"]


@pytest.mark.parametrize("strategy", ["eager", "layrub_hybrid", "zero_offload", "zero_infinity", "joint"])
def test_methods_leave_exchanged_weights_on_the_device(strategy: str) -> None:
    least = predictor(partition_optimizer=True).on(configuration.load("device", "h100")).allocated_bytes
    found = predictor(strategy, least if strategy == "joint" else None, partition_optimizer=True)
    runs, _ = found.planned(configuration.load("device", "h100"))
    assert not any(task.on_host for run in runs for task in run.schedule.graph.tasks)


def test_shards_divide_the_update_already() -> None:
    for parallel in ({"fsdp": 8}, {"dp": 2, "fsdp": 4}):
        with pytest.raises(MembenchError, match="partition_optimizer=True divides the update over replicas"):
            predictor(parallel=parallel, partition_optimizer=True, wrapped=["Linear"])


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (None, "name the optimizer"),
        (membench.WeightUpdate(torch.optim.Adam, in_backward=True), "leave it out, or in_backward"),
    ],
)
def test_an_update_that_cannot_be_divided_is_refused(
    update: membench.WeightUpdate | None, message: str
) -> None:
    with pytest.raises(MembenchError, match=message):
        predictor(update=update, partition_optimizer=True)
