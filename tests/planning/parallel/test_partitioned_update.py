"""An update that replicas divide: the largest part is held and run, and all weights are exchanged behind it."""

from functools import partial

import pytest
import torch
from torch import nn

import membench
from membench.capture.capture import capture
from membench.core import configuration
from membench.core.errors import MembenchError, UnsupportedStrategy
from membench.core.graph.schedule import Compute, Prefetch, Schedule
from membench.core.graph.task_graph import Phase, Role
from membench.core.hardware.cluster import Cluster
from membench.core.step.optimizer import Gradients
from membench.core.step.workload import Workload
from membench.planning.memory.holders import held_at_peak_bytes
from membench.planning.parallel.partitioned_update import partitioned
from membench.steps.parallel.ranks import ranks_of
from membench.steps.predict import Predictor
from membench.steps.request import StepRequest
from membench.strategies.base import find_strategy, strategies
from tests.helpers.steps.updates import captured

WIDTH, LAYERS = 64, 6
ADAM = membench.WeightUpdate(torch.optim.Adam)
OPTIMIZERS = {
    "adam": ADAM,
    "momentum": membench.WeightUpdate(partial(torch.optim.SGD, momentum=0.9)),
    "kept": membench.WeightUpdate(torch.optim.AdamW, gradients=Gradients.KEPT),
    "average": membench.WeightUpdate(torch.optim.Adam, ema=True),
}
OFFLOADING = ["zero_offload", "zero_infinity", "ratel"]


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
        work = Workload("layers", network, nn.CrossEntropyLoss(), (inputs,), (torch.empty(8, dtype=torch.long),))
    cluster = options.pop("cluster", configuration.load("cluster", "dgx_h100"))
    ranks = ranks_of(network, cluster, **{"parallel": {"dp": 8}, **options})  # type: ignore[arg-type]
    return Predictor(work, StepRequest(find_strategy(strategy)(), budget_bytes, optimizer=update), ranks)


def states_bytes(found: Predictor) -> int:
    return found.on(configuration.load("device", "h100")).parts_bytes["optimizer state"]


def test_a_rank_holds_the_states_of_its_part_alone() -> None:
    """The last layer has more weights than all others together: the rank that has it has nothing else."""
    weights = 8 * WIDTH * WIDTH
    assert states_bytes(predictor(partition_optimizer=True)) == pytest.approx(2 * 4 * weights, rel=0.01)
    all_weights = LAYERS * (WIDTH * WIDTH + WIDTH) + weights + 8 * WIDTH
    assert states_bytes(predictor()) == pytest.approx(2 * 4 * all_weights, rel=0.01)


def test_all_weights_are_gathered_behind_the_update() -> None:
    graph = predictor(partition_optimizer=True).graph_on()
    last = graph.tasks[-1]
    assert last.collective is not None
    weights = sum(weight.numel() for weight in module().parameters())
    assert (last.collective.axis, last.collective.size_bytes) == ("dp", 4 * weights)
    assert len(last.reads) == 2 * (LAYERS + 1)
    names = {block.index: block.name for block in graph.blocks}
    assert {names[block] for block in set(last.reads) - set(last.writes)} == {"12.weight"}  # its own
    assert "weights:all-gather" not in {task.name for task in predictor().graph_on().tasks}


def test_parts_are_as_equal_as_whole_weights_allow() -> None:
    with torch.device("meta"):
        inputs = torch.empty(4, 8)
        work = Workload("two", nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), nn.MSELoss(), (inputs,), (inputs,))
    update = partitioned(captured("sgd"), "dp", 2)(capture(work).graph)
    assert sorted(name for task in update.tasks[:-1] for name in task.weights) == ["0.bias", "0.weight"]


def planned(strategy: str, **options: object) -> Schedule:
    runs, _ = predictor(strategy, **options).planned(configuration.load("device", "h100"))  # type: ignore[arg-type]
    return runs[-1].schedule


@pytest.mark.parametrize("strategy", strategies())
def test_methods_leave_the_weights_of_other_ranks_on_the_device(strategy: str) -> None:
    least = predictor(partition_optimizer=True).on(configuration.load("device", "h100")).allocated_bytes
    budget_bytes = least if strategy == "joint" else None
    try:
        schedule = planned(strategy, budget_bytes=budget_bytes, partition_optimizer=True)
    except MembenchError as refusal:  # of methods for convolutions
        if "is wrong" in str(refusal):
            raise
        return
    blocks = schedule.graph.blocks
    at_home = {block.name for block in blocks if block.host_location and block.role is Role.WEIGHT}
    assert at_home <= {"12.weight"}  # its own
    moved = {b for task in schedule.graph.tasks if task.on_host for b in task.writes}
    assert {blocks[b].name for b in moved if blocks[b].role is Role.WEIGHT} <= at_home
    assert moved or strategy not in OFFLOADING


def test_an_update_is_not_divided_between_processes_and_between_host_and_device() -> None:
    with pytest.raises(UnsupportedStrategy, match="leave partition_optimizer out, or choose zero_offload"):
        planned("superoffload", partition_optimizer=True)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("replicas", [2, 8])
@pytest.mark.parametrize("strategy", OFFLOADING)
def test_states_of_a_part_are_in_host_memory_where_its_weights_are_updated_and_sent_from(
    strategy: str, replicas: int, optimizer: str
) -> None:
    options: dict[str, object] = {"parallel": {"dp": replicas}, "partition_optimizer": True}
    options |= {"update": OPTIMIZERS[optimizer], "cluster": Cluster(devices_per_host=replicas)}
    kept = planned("pytorch", **options).graph
    schedule = planned(strategy, **options)
    graph = schedule.graph
    states = {block.name: block for block in graph.blocks if block.role is Role.OPTIMIZER_STATE}
    assert all(block.host_location for block in states.values())
    assert {name: block.size_bytes for name, block in states.items()} == {
        block.name: block.size_bytes for block in kept.blocks if block.role is Role.OPTIMIZER_STATE
    }
    assert held_at_peak_bytes(schedule).get("optimizer state", 0) == 0
    updated = {block for task in graph.tasks if task.on_host for block in task.writes}
    own = {block.index for block in graph.blocks if block.role is Role.WEIGHT and block.host_location}
    assert own == {block for block in updated if graph.blocks[block].role is Role.WEIGHT}
    places = {
        (type(item).__name__, item.task if isinstance(item, Compute) else item.block): place
        for place, item in enumerate(schedule.instructions)
        if isinstance(item, Compute | Prefetch)
    }
    [gather] = (task for task in graph.tasks if task.collective and task.phase is Phase.UPDATE)
    for task in graph.tasks:
        for weight in own.intersection(task.writes):
            made, sent = places["Compute", task.index], places["Compute", gather.index]
            assert made < places["Prefetch", weight] < sent
    assert own and own.isdisjoint(gather.writes) and own <= set(gather.reads)


@pytest.mark.parametrize("strategy", ["zero_offload", "zero_infinity"])
def test_states_are_in_host_memory_behind_several_micro_batches_too(strategy: str) -> None:
    device = configuration.load("device", "h100")
    for divided in (True, False):
        once, thrice = (
            predictor(strategy, accumulate=number, partition_optimizer=divided).on(device) for number in (1, 3)
        )
        assert "optimizer state" not in thrice.parts_bytes
        assert thrice.host_bytes >= once.host_bytes > 0
        assert thrice.step_time_s > once.step_time_s


def test_eight_ranks_hold_an_eighth_of_the_states_each() -> None:
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(8)))
        batch = torch.empty(8, WIDTH)
    found = [
        membench.predict(
            module, lambda output: output.sum(), (batch, ()), cluster="dgx_h100", parallel={"dp": 8},
            partition_optimizer=divided, strategy="zero_offload", optimizer="sgd",
        )
        for divided in (True, False)
    ]  # fmt: skip
    # weight and gradient, in SGD without states
    assert [each.host_bytes for each in found] == [8 * 2 * 4 * WIDTH**2, 8 * 8 * 2 * 4 * WIDTH**2]
    assert "optimizer state" not in found[0].parts_bytes


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
def test_an_update_that_cannot_be_divided_is_refused(update: membench.WeightUpdate | None, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        predictor(update=update, partition_optimizer=True)
