"""A rank's step in a pipeline: what stages compute and pass on, and that any method can schedule it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.capture.trace import ANY_GPU
from membench.capture.update.captured_update import CapturedUpdate
from membench.core.errors import MembenchError, UnsupportedModel, UnsupportedStrategy
from membench.core.graph.collective import CollectiveKind
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.graph.task_graph import AFTER_THE_LOSS, Phase, Role, TaskGraph
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.pipeline import Pipeline, PipelineSchedule
from membench.core.step.sharding import Sharding
from membench.core.step.workload import Workload
from membench.planning.parallel import pipeline as passes
from membench.planning.parallel.sharding import shard
from membench.planning.rewrites.update import add_update
from membench.steps.parallel.blocks import groups_of, repeated_classes, stage_begins
from membench.steps.plan import plan
from membench.steps.simulated_step import simulated_pipeline
from membench.strategies.base import find_strategy
from tests.helpers.planning.costs import UnitCost

BLOCKS, WIDTH, MICRO_BATCHES = 6, 16, 4
FORWARD_S = 3 * 2.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.linear(self.norm(inputs))


class Network(nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.embedding(inputs)
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


NETWORK = Network()


def pipelined(graph: TaskGraph, joined: Pipeline) -> list[TaskGraph]:
    return [rank.graph for rank in passes.pipelined(graph, joined)]


CLASSES = repeated_classes(NETWORK)
ORDERS = [*PipelineSchedule]


def micro_batch_of(network: nn.Module) -> TaskGraph:
    batch = (torch.randn(8, WIDTH),), (torch.arange(8),)
    workload = Workload("blocks", network, nn.CrossEntropyLoss(), *batch, loss_scale=1 / MICRO_BATCHES)
    return Captures(workload, ANY_GPU).graph_at(8)


@pytest.fixture(scope="module")
def captured() -> TaskGraph:
    return micro_batch_of(NETWORK)


def pipeline(schedule: PipelineSchedule = PipelineSchedule.ONE_FORWARD_ONE_BACKWARD, **options: Any) -> Pipeline:
    stages = 4 if schedule is PipelineSchedule.INTERLEAVED else 2
    return Pipeline(2, stage_begins(NETWORK, CLASSES, stages), MICRO_BATCHES, schedule, **options)


@pytest.mark.parametrize("schedule", ORDERS)
def test_ranks_compute_the_step_once_for_each_micro_batch(captured: TaskGraph, schedule: PipelineSchedule) -> None:
    ranks = pipelined(captured, pipeline(schedule))
    for graphs, whole in ((ranks, captured), ([rank.plain for rank in ranks], captured.plain)):
        assert whole is not None
        own = Counter(
            (task.name.partition(": ")[2], task.operations)
            for graph in graphs
            if graph
            for task in graph.tasks
            if not task.collective and not task.name.endswith("accumulate")
        )
        assert own == Counter((task.name, task.operations) for task in whole.tasks for _ in range(MICRO_BATCHES))
    weights = [block.name for rank in ranks for block in rank.blocks if block.role is Role.WEIGHT]
    assert sorted(weights) == sorted(name for name, _ in NETWORK.named_parameters())
    assert [rank.loss is not None for rank in ranks] == [False, True]
    assert sorted(name for rank in ranks for name, _ in rank.gradients) == sorted(weights)


@pytest.mark.parametrize("schedule", ORDERS)
def test_each_message_is_sent_once_and_received_once(captured: TaskGraph, schedule: PipelineSchedule) -> None:
    joined = pipeline(schedule)
    ranks = pipelined(captured, joined)
    passed: dict[str, list[tuple[str, int]]] = {CollectiveKind.SEND: [], CollectiveKind.RECEIVE: []}
    for rank in ranks:
        for task in rank.tasks:
            if task.collective:
                passed[task.collective.kind].append((task.collective.message, task.collective.size_bytes))
    sent, received = passed[CollectiveKind.SEND], passed[CollectiveKind.RECEIVE]
    assert sorted(sent) == sorted(received)
    assert len({*sent}) == len(sent) == 2 * MICRO_BATCHES * (joined.stages - 1)
    assert all(size_bytes == 8 * WIDTH * 4 for _, size_bytes in sent)


def test_gradients_of_inputs_come_before_those_of_weights(captured: TaskGraph) -> None:
    _, last = pipelined(captured, pipeline(PipelineSchedule.ZERO_BUBBLE))
    names = [task.name for task in last.tasks]
    sends = [at for at, name in enumerate(names) if name.startswith("send")]
    weights = [
        at
        for at, task in enumerate(last.tasks)
        if task.name.startswith("micro-batch 1: ") and task.phase is Phase.BACKWARD
    ]
    assert weights[0] < sends[1] < weights[-1]


STRATEGIES = ["pytorch", "eager", "capuchin", pytest.param("joint", marks=pytest.mark.exhaustive)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_methods_schedule_a_rank_with_shards_and_an_update(captured: TaskGraph, strategy: str) -> None:
    sharding = Sharding(4, groups_of(NETWORK, CLASSES), reshard_after_forward=False, reduce_dtype=torch.float32)
    plans = []
    for rank in pipelined(captured, replace(pipeline(gradient_dtype=torch.float32), micro_batches=2)):
        graph = add_update(shard(rank, sharding), CapturedUpdate(WeightUpdate(torch.optim.Adam), NETWORK))
        gathers = [t for t in graph.tasks if t.collective and t.collective.kind is CollectiveKind.ALL_GATHER]
        assert len(gathers) == 1 + (BLOCKS // 2)  # one for all micro-batches of each block, and of the root
        plans.append((RepeatedSchedule(plan(graph, find_strategy(strategy)(), UnitCost(), None)),))  # and validate it
    first, last = simulated_pipeline(plans, UnitCost())
    assert first.step_time_s > 0 and last.step_time_s > 0


def test_methods_by_layers_plan_passes_one_after_the_other(captured: TaskGraph) -> None:
    vdnn = find_strategy("vdnn_all")()
    for rank in pipelined(captured, pipeline(PipelineSchedule.GPIPE)):
        plan(rank, vdnn, UnitCost(), None)  # and validate it
    first, _ = pipelined(captured, pipeline())
    with pytest.raises(UnsupportedStrategy, match="passes of micro-batches alternate.*use pipeline=GPipe"):
        plan(first, vdnn, UnitCost(), None)


class FreeMessages(UnitCost):
    def task_time_s(self, task: Any) -> float:
        return 0.0 if task.collective else 1.0

    def launch_time_s(self, task: Any) -> float:
        return 0.0


def test_a_pipeline_takes_as_long_as_its_formula(captured: TaskGraph) -> None:
    """GPipe, 2.3: equal stages take (micro-batches + stages - 1) / micro-batches of the time without waiting."""
    cost = FreeMessages()
    times = {}
    for schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_FORWARD_ONE_BACKWARD):
        joined = pipeline(schedule)
        ranks = pipelined(captured, joined)
        plans = [(RepeatedSchedule(plan(rank, find_strategy("pytorch")(), cost, None)),) for rank in ranks]
        times[schedule] = max(step.step_time_s for step in simulated_pipeline(plans, cost))
        alone = [
            sum(1 for task in rank.plain.tasks if not task.collective) / MICRO_BATCHES for rank in ranks if rank.plain
        ]
        assert max(alone) * MICRO_BATCHES <= times[schedule] <= max(alone) * (MICRO_BATCHES + 1)
    assert times[PipelineSchedule.GPIPE] >= times[PipelineSchedule.ONE_FORWARD_ONE_BACKWARD]


def test_fewer_micro_batches_are_under_way_in_later_stages(captured: TaskGraph) -> None:
    joined = replace(pipeline(), ranks=4, begins=stage_begins(NETWORK, CLASSES, 4))
    ranks = pipelined(captured, joined)
    schedules = [plan(rank, find_strategy("pytorch")(), UnitCost(), None) for rank in ranks]
    held = [schedule.peak_bytes - schedule.graph.external_bytes for schedule in schedules]
    assert held[1] > held[2]
    assert all(task.phase in AFTER_THE_LOSS for task in ranks[0].tasks[-3:])


def test_a_weight_of_two_stages_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match=r"embedding\.weight.*stages 0 and 1 of the pipeline both use it"):
        pipelined(micro_batch_of(Network(tied=True)), pipeline())


def test_a_message_that_no_rank_sends_ends_the_simulation(captured: TaskGraph) -> None:
    first, _ = pipelined(captured, pipeline())
    alone = (RepeatedSchedule(plan(first, find_strategy("pytorch")(), UnitCost(), None)),)
    broken = (RepeatedSchedule(plan(captured, find_strategy("pytorch")(), FreeMessages(), None)),)
    with pytest.raises(MembenchError, match="no rank sends 'stage 1 to 0, micro-batch 0"):
        simulated_pipeline([alone, broken], UnitCost())
