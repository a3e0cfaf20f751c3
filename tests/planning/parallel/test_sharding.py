"""A rank's step in shards and replicas: what is divided, what is gathered when, and that any method fits."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from membench.capture.capture import Captures
from membench.capture.trace import ANY_GPU
from membench.capture.update.captured_update import CapturedUpdate
from membench.core.errors import InvalidSchedule
from membench.core.graph.collective import CollectiveKind
from membench.core.graph.precision import Precision
from membench.core.graph.schedule import Compute, Schedule, Wait
from membench.core.graph.task_graph import AFTER_THE_LOSS, Phase, Role, TaskGraph
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.sharding import Sharding
from membench.core.step.workload import Workload
from membench.planning.checking.validate import validate
from membench.planning.parallel.replication import FIRST_BUCKET_BYTES, replicate
from membench.planning.parallel.sharding import shard
from membench.planning.rewrites.update import add_update
from membench.steps.parallel.blocks import groups_of, kept_dtypes, repeated_classes
from membench.steps.plan import plan
from membench.strategies.base import find_strategy
from tests.helpers.planning.costs import UnitCost

LAYERS, WIDTH, RANKS = 4, 64, 4
STREAM = "collectives fsdp"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + nn.functional.relu(self.linear(self.norm(inputs)))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.embedding(inputs)
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


NETWORK = Network()
GROUPS = groups_of(NETWORK, repeated_classes(NETWORK))
ADAM = WeightUpdate(torch.optim.Adam)


@pytest.fixture(scope="module")
def captured() -> TaskGraph:
    batch = (torch.randn(8, WIDTH),), (torch.arange(8),)
    workload = Workload("blocks", NETWORK, nn.CrossEntropyLoss(), *batch, precision=Precision.BF16)
    return Captures(workload, ANY_GPU).graph_at(8)


def sharded(captured: TaskGraph, **options: Any) -> TaskGraph:
    sharding = Sharding(RANKS, GROUPS, kept_dtypes=kept_dtypes(NETWORK), reduce_dtype=torch.float32)
    graph = shard(captured, replace(sharding, **options))
    return add_update(graph, CapturedUpdate(ADAM, NETWORK))


def bytes_of(graph: TaskGraph, *roles: Role) -> int:
    return sum(block.size_bytes for block in graph.blocks if block.role in roles)


def collectives(graph: TaskGraph, kind: CollectiveKind) -> list[int]:
    """Return the bytes of a graph's collectives of a kind, in order."""
    found = (task.collective for task in graph.tasks if task.collective)
    return [each.size_bytes for each in found if each.kind is kind]


def planned(graph: TaskGraph, strategy: str) -> Schedule:
    return plan(graph, find_strategy(strategy)(), UnitCost(), None)


def test_modules_of_a_repeated_class_are_groups_without_those_inside_them_that_are_wrapped_too() -> None:
    assert [len(group) for group in GROUPS] == [4] * LAYERS
    assert GROUPS[0][0] == "blocks.0.norm.weight"
    nested = groups_of(NETWORK, frozenset({"Block", "Linear"}))
    assert ("blocks.0.norm.weight", "blocks.0.norm.bias") in nested
    assert ("embedding.weight", "embedding.bias") in nested


def test_weights_gradients_and_states_are_divided_over_the_ranks(captured: TaskGraph) -> None:
    graph = sharded(captured)
    elements = sum(weight.numel() for weight in NETWORK.parameters())
    few = 16 * len(list(NETWORK.parameters()))  # a rank's part of a weight is rounded up
    for role, copies in ((Role.WEIGHT, 1), (Role.APPLIED_GRADIENT, 1), (Role.OPTIMIZER_STATE, 2)):
        assert 0 <= bytes_of(graph, role) - copies * 4 * elements / RANKS < copies * few
    assert bytes_of(captured, Role.WEIGHT) == 2 * elements


@pytest.mark.parametrize("copies_out", [False, True])
def test_each_group_is_gathered_for_each_pass_and_its_gradients_are_reduced_once(
    captured: TaskGraph, copies_out: bool
) -> None:
    padded = 2 * 2 * (WIDTH + 1) if copies_out else 0  # ten rows of the head are gathered as twelve
    whole = bytes_of(captured, Role.WEIGHT) + padded
    block = sum(weight.numel() for weight in NETWORK.blocks[0].parameters()) * 2
    for graph in (twice := sharded(captured, copies_out=copies_out), twice.plain):
        assert graph is not None
        assert sum(collectives(graph, CollectiveKind.ALL_GATHER)) == whole + LAYERS * block
        assert sum(collectives(graph, CollectiveKind.REDUCE_SCATTER)) == 2 * whole  # in single precision
    once = sharded(captured, copies_out=copies_out, reshard_after_forward=False)
    assert sum(collectives(once, CollectiveKind.ALL_GATHER)) == whole
    peaks = [planned(graph, "pytorch").peak_bytes for graph in (twice, once)]
    assert peaks[0] < peaks[1]


def test_a_group_is_gathered_while_the_one_before_it_runs(captured: TaskGraph) -> None:
    plain = sharded(captured).plain
    assert plain is not None
    names = [task.name for task in plain.tasks]
    for phase, suffix, order in (
        (False, "", list(range(LAYERS))),
        (True, " in the backward pass", list(reversed(range(LAYERS)))),
    ):
        uses = {}
        for block in range(LAYERS):
            of_block = {
                b.index for b in plain.blocks if b.name.startswith(f"blocks.{block}.") and b.role is Role.GATHERED
            }
            uses[block] = next(
                task.index for task in plain.tasks
                if (task.phase in AFTER_THE_LOSS) is phase and task.call and not of_block.isdisjoint(task.reads)
            )  # fmt: skip
        for before, block in pairwise(order):
            gathered = names.index(f"blocks.{block}:all-gather{suffix}")
            assert uses[before] > gathered > names.index(f"blocks.{before}:all-gather{suffix}")


@pytest.mark.parametrize(
    ("copies_out", "wanted"),
    [
        (True, {"shards": "shards", "all-gather": "shards", "gathered": "", "gradient shards": "reduction"}),
        (False, {"shards": "shards", "gathered": "all-gather", "gradient shards": "reduction"}),
    ],
)
def test_tensors_of_collectives_have_the_pools_of_torchs_streams(
    captured: TaskGraph, copies_out: bool, wanted: dict[str, str]
) -> None:
    whole = sharded(captured, copies_out=copies_out)
    assert whole.plain is not None
    found = {block.name.rpartition(":")[2]: block.pool for block in whole.plain.blocks}
    assert {name: found[name] for name in wanted} == wanted
    assert not any(block.pool for block in whole.plain.blocks if block.role is Role.ACTIVATION)
    assert not any(block.pool for block in whole.blocks)  # an engine of its own has one pool


def test_what_is_gathered_ahead_is_not_held_in_addition_to_more_than_one_group(captured: TaskGraph) -> None:
    schedule = planned(sharded(captured, copies_out=False), "pytorch")
    block = sum(weight.numel() for weight in NETWORK.blocks[0].parameters()) * 2
    root = bytes_of(captured, Role.WEIGHT) - LAYERS * block
    held = most = 0
    gathered = {b.index: b.size_bytes for b in schedule.graph.blocks if b.role is Role.GATHERED}
    for item in schedule.instructions:
        if isinstance(item, Compute):
            held += sum(gathered.get(b, 0) for b in schedule.graph.tasks[item.task].creates)
        else:
            held -= gathered.get(getattr(item, "block", -1), 0) if type(item).__name__ == "Free" else 0
        most = max(most, held)
    assert root + 2 * block < most <= root + 2 * block + 3 * block // RANKS + root // RANKS


STRATEGIES = [
    "pytorch", "eager", "joint", "layrub_hybrid", "vdnn_all", "superneurons", "capuchin", "zero_offload", "rotor",
]  # fmt: skip


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("options", [{}, {"replicas": "dp", "accumulates": True, "copies_out": False}])
def test_methods_schedule_a_rank(captured: TaskGraph, strategy: str, options: dict[str, Any]) -> None:
    schedule = planned(sharded(captured, **options), strategy)  # and validate it
    streams = {
        item.stream
        for item in schedule.instructions
        if isinstance(item, Compute) and schedule.graph.tasks[item.task].collective
    }
    assert streams == {STREAM, *({"collectives dp"} if "replicas" in options else ())}


def test_a_wait_for_a_collective_cannot_be_left_out(captured: TaskGraph) -> None:
    schedule = planned(sharded(captured), "pytorch")
    instructions = schedule.instructions
    waits = [
        position for position, item in enumerate(instructions)
        if isinstance(item, Wait) and getattr(instructions[item.instruction], "stream", "") == STREAM
    ]  # fmt: skip
    assert len(waits) > 2 * LAYERS
    for position in waits[::5]:
        without = [
            replace(item, instruction=item.instruction - (item.instruction > position))
            if isinstance(item, Wait)
            else item
            for item in (*instructions[:position], *instructions[position + 1 :])
        ]
        with pytest.raises(InvalidSchedule):
            validate(replace(schedule, instructions=tuple(without)))


def test_replicas_of_shards_average_them(captured: TaskGraph) -> None:
    graph = sharded(captured, replicas="dp")
    shards = bytes_of(graph, Role.APPLIED_GRADIENT)
    assert sum(collectives(graph, CollectiveKind.ALL_REDUCE)) == shards


def test_micro_batches_add_to_the_shards_of_gradients(captured: TaskGraph) -> None:
    graph = sharded(captured, accumulates=True)
    kept = {block.index for block in graph.blocks if block.role is Role.ACCUMULATED}
    assert {value.block for _, value in graph.gradients if value} == kept
    added = [task for task in graph.tasks if task.name.endswith(":accumulate")]
    assert {block for task in added for block in task.writes} == kept
    assert all(set(task.writes) <= set(task.reads) for task in added)


def test_replicas_average_each_gradient_in_one_bucket_as_it_is_full(captured: TaskGraph) -> None:
    graph = add_update(replicate(captured, "dp", 2), CapturedUpdate(ADAM, NETWORK))
    gradients = {value.block for _, value in graph.gradients if value}
    copied_in = [task for task in graph.tasks if task.name.endswith(":copy in")]
    assert sorted(block for task in copied_in for block in task.reads) == sorted(gradients)
    assert sum(collectives(graph, CollectiveKind.ALL_REDUCE)) == graph.size_bytes(gradients)
    updates = [task.index for task in graph.tasks if task.phase is Phase.UPDATE]
    assert min(updates) > max(task.index for task in graph.tasks if task.collective)
    for strategy in ("pytorch", "joint", "layrub_hybrid"):
        planned(graph, strategy)


def test_the_first_bucket_is_small() -> None:
    module = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(30)))
    batch = (torch.randn(2, 512),), (torch.arange(2),)
    graph = Captures(Workload("linear", module, nn.CrossEntropyLoss(), *batch), ANY_GPU).graph_at(2)
    sizes = collectives(replicate(graph, "dp", 2), CollectiveKind.ALL_REDUCE)
    assert sizes[0] == FIRST_BUCKET_BYTES and sizes[1] == 25 * FIRST_BUCKET_BYTES and sum(sizes) == 30 << 20
