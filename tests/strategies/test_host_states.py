"""ZeRO-Offload, ZeRO-Infinity and Ratel: what leaves the device, what visits it, and when the processor updates."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

import membench
from experiments.validation.programs.lohan import FeatureLoss, LoHan
from membench.core import configuration
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import Compute, Free, Offload, Prefetch, Schedule
from membench.core.graph.task_graph import Phase, Role, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.step.optimizer import Gradients, WeightUpdate
from membench.core.step.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.execution.simulation import step_time_s
from membench.models.megatron import MasterAdam, Megatron, TokenLoss
from membench.planning.memory.liveness import live_bytes
from membench.planning.rewrites.rewrite import as_written
from membench.steps.plan import plan
from membench.steps.predict import Predictor
from membench.steps.request import StepRequest
from membench.strategies.base import Strategy
from membench.strategies.pytorch import PyTorch
from membench.strategies.ratel import Ratel, Swapping
from membench.strategies.superoffload import SuperOffload
from membench.strategies.zero_infinity import ZeroInfinity
from membench.strategies.zero_offload import ZeroOffload

LAYERS, WIDTH, TOKENS, BATCH = 6, 128, 32, 4
CHECKPOINT_BYTES = BATCH * TOKENS * WIDTH * 2


def cost_of(link_bytes_per_s: float) -> CostModel:
    device = replace(
        configuration.load("device", "v100"),
        host_to_device_bytes_per_s=link_bytes_per_s,
        device_to_host_bytes_per_s=link_bytes_per_s,
        copy_latency_s=0.0,
    )
    efficiency = configuration.load("framework", "pytorch").efficiency
    return RooflineCost(device, efficiency, configuration.load("machine", "dgx2"))


COST = cost_of(12e9)


@pytest.fixture(scope="module")
def graph() -> TaskGraph:
    with torch.device("meta"):
        network = LoHan(layers=LAYERS, width=WIDTH, heads=4, vocabulary=256)
        batch = torch.zeros(BATCH, TOKENS, dtype=torch.long), torch.zeros(BATCH, TOKENS, WIDTH)
    workload = Workload("gpt", network, FeatureLoss(), *((each,) for each in batch))
    return Predictor(workload, StepRequest(PyTorch(), optimizer=WeightUpdate(torch.optim.AdamW))).graph_on()


def planned(graph: TaskGraph, strategy: Strategy) -> Schedule:
    return plan(graph, strategy, COST, None)


def bytes_of(schedule: Schedule, role: Role) -> int:
    """Return the most bytes of a role that are on the device at once."""
    return max(live_bytes(schedule, frozenset({role})))


def tasks_of(schedule: Schedule) -> Iterator[tuple[int, Phase, bool]]:
    """Yield position, phase and whether it is the host's, for each task in the order of the program."""
    for position, item in enumerate(schedule.instructions):
        if isinstance(item, Compute):
            task = schedule.graph.tasks[item.task]
            yield position, task.phase, task.on_host


def copied(schedule: Schedule, kind: type[Offload] | type[Prefetch], role: Role) -> list[int]:
    blocks = schedule.graph.blocks
    found = (item.block for item in schedule.instructions if isinstance(item, kind))
    return [block for block in found if blocks[block].role is role]


def test_the_written_step_recomputes_what_its_program_does_and_ends_with_the_update_in_parts(graph: TaskGraph) -> None:
    written = as_written(graph, COST)
    recomputed = [task.name for task in written.tasks if task.is_recomputed]
    assert recomputed and not any(task.is_recomputed for task in graph.tasks)
    phases = [task.phase for task in written.tasks]
    parts = phases.count(Phase.UPDATE)
    assert parts > LAYERS and phases[-parts:] == [Phase.UPDATE] * parts
    assert [task.index for task in written.tasks] == list(range(len(phases)))
    names = {written.blocks[block].name for task in written.tasks[-parts:] for block in task.writes}
    assert {name for name, value in graph.gradients if value} <= names


def test_the_step_of_another_framework_gives_back_each_block_after_its_last_use(graph: TaskGraph) -> None:
    foreign = as_written(replace(graph, plain=None), COST)
    released = [block for task in foreign.tasks for block in task.releases]
    assert len(released) == len(set(released)) > LAYERS
    for task in foreign.tasks[:-1]:
        later = {block for other in foreign.tasks[task.index + 1 :] for block in other.reads}
        assert not {b for b in task.releases if foreign.blocks[b].role is Role.ACTIVATION} & later


def test_zero_offload_brings_each_weight_once_and_lets_each_gradient_leave_once(graph: TaskGraph) -> None:
    schedule = planned(graph, ZeroOffload())
    weights = [block.index for block in schedule.graph.blocks if block.role is Role.WEIGHT]
    assert sorted(copied(schedule, Prefetch, Role.WEIGHT)) == weights
    assert len(copied(schedule, Offload, Role.APPLIED_GRADIENT)) == sum(bool(v) for _, v in graph.gradients)
    assert not copied(schedule, Prefetch, Role.OPTIMIZER_STATE)
    assert not copied(schedule, Offload, Role.ACTIVATION)


def test_gradients_that_leave_take_no_more_than_the_bucket_and_one_of_them(graph: TaskGraph) -> None:
    all_of_them = bytes_of(planned(graph, PyTorch()), Role.APPLIED_GRADIENT)
    largest = 4 * WIDTH * WIDTH * 2
    schedule = planned(graph, ZeroOffload(bucket_bytes=largest))
    assert bytes_of(schedule, Role.APPLIED_GRADIENT) <= 3 * largest < all_of_them / 3


@pytest.mark.parametrize("strategy", [ZeroOffload(), ZeroInfinity()])
def test_updates_of_zero_are_behind_the_backward_pass(graph: TaskGraph, strategy: Strategy) -> None:
    order = list(tasks_of(planned(graph, strategy)))
    first = next(position for position, _, on_host in order if on_host)
    assert all(on_host for position, _, on_host in order if position > first)


@pytest.mark.parametrize("strategy", [Ratel(), SuperOffload()])
def test_updates_of_others_begin_in_the_backward_pass(graph: TaskGraph, strategy: Strategy) -> None:
    order = list(tasks_of(planned(graph, strategy)))
    first = next(position for position, _, on_host in order if on_host)
    last = max(position for position, phase, _ in order if phase is Phase.BACKWARD)
    assert first < (order[0][0] + last) / 1.2


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_the_device_updates_what_is_complete_last_under_superoffload(graph: TaskGraph, share: float) -> None:
    found = planned(graph, SuperOffload(host_share=share)).graph
    updates = [task for task in found.tasks if task.phase is Phase.UPDATE]
    complete = {b: task.index for task in found.tasks if task.phase is not Phase.UPDATE for b in task.writes}
    places = {on_host: [max(complete.get(b, 0) for b in task.reads) for task in updates if task.on_host is on_host]
              for on_host in (False, True)}  # fmt: skip
    assert max(places[True], default=0) <= min(places[False], default=len(found.tasks))
    of_host = {b for task in updates if task.on_host for b in task.writes if found.blocks[b].role is Role.WEIGHT}
    sizes_bytes = {b.index: b.size_bytes for b in found.blocks if b.role is Role.WEIGHT}
    on_host_bytes = sum(sizes_bytes[b] for b in of_host)
    assert abs(on_host_bytes - share * sum(sizes_bytes.values())) <= max(sizes_bytes.values()) / 2
    assert all((b in of_host) == (found.blocks[b].host_location is not None) for b in sizes_bytes)


def test_weights_visit_under_zero_infinity(graph: TaskGraph) -> None:
    none_reused = ZeroInfinity(ahead=1, reuse_bytes=0)
    held = bytes_of(planned(graph, none_reused), Role.WEIGHT)
    assert held <= 3 * 4 * WIDTH * WIDTH * 2 < bytes_of(planned(graph, ZeroOffload()), Role.WEIGHT) / 5
    all_reused = copied(planned(graph, ZeroInfinity()), Prefetch, Role.WEIGHT)
    assert len(all_reused) == len(set(all_reused))  # this network is smaller than the distance of reuse
    visits = copied(planned(graph, none_reused), Prefetch, Role.WEIGHT)
    assert len(visits) > 1.5 * len(set(visits))


def test_checkpoints_of_the_program_leave_under_zero_infinity(graph: TaskGraph) -> None:
    left = copied(planned(graph, ZeroInfinity()), Offload, Role.ACTIVATION)
    assert len(left) == 2 * LAYERS
    sizes_bytes = {graph.plain.blocks[block].size_bytes for block in left} if graph.plain else set()
    assert sizes_bytes == {CHECKPOINT_BYTES}
    assert not copied(planned(graph, ZeroInfinity(offload_activations=False)), Offload, Role.ACTIVATION)


def test_a_faster_link_lets_more_activations_leave_and_fewer_be_made_again(graph: TaskGraph) -> None:
    dropped_bytes = [
        graph.size_bytes(block for segment in Swapping(graph, cost_of(rate)).segments() for block in segment.dropped)
        for rate in (1e9, 50e9, 1e12)
    ]
    assert dropped_bytes[0] > dropped_bytes[2]
    assert sorted(dropped_bytes, reverse=True) == dropped_bytes


def test_what_a_stage_hands_on_always_leaves(graph: TaskGraph) -> None:
    schedule = planned(graph, Ratel(bucket_bytes=0))
    left = copied(schedule, Offload, Role.ACTIVATION)
    of_the_size = [block for block in left if schedule.graph.blocks[block].size_bytes == CHECKPOINT_BYTES]
    assert len(of_the_size) >= 2 * LAYERS - 1
    frees = {item.block for item in schedule.instructions if isinstance(item, Free)}
    assert set(left) <= frees


def test_a_delayed_update_runs_beside_the_passes_on_the_gradients_of_the_step_before(graph: TaskGraph) -> None:
    in_time, delayed = (planned(graph, ZeroOffload(delayed=delayed)) for delayed in (False, True))
    tasks, blocks = delayed.graph.tasks, delayed.graph.blocks
    first = next(task.index for task in tasks if not task.on_host)
    assert {blocks[block].name.rpartition(":")[2] for task in tasks[:first] for block in task.reads} >= {"previous"}
    weights = {block.index for block in blocks if block.role is Role.WEIGHT}
    assert weights.isdisjoint(block for task in tasks for block in task.writes)
    kept = {block for task in tasks[:first] for block in task.reads if blocks[block].name.endswith(":previous")}
    assert kept == {block for task in tasks[first:] if task.on_host for block in task.writes}
    assert delayed.peak_bytes == in_time.peak_bytes
    fast_link = cost_of(1e12)
    times_s = [
        step_time_s(plan(graph, ZeroOffload(delayed=delayed), fast_link, None), fast_link) for delayed in (False, True)
    ]
    assert times_s[1] < times_s[0]


@pytest.mark.parametrize("strategy", [ZeroOffload(), ZeroInfinity(), Ratel(), SuperOffload()])
def test_gradients_that_outlive_the_update_are_refused_in_a_sentence(strategy: Strategy) -> None:
    network, batch = torch.nn.Linear(8, 2), (torch.randn(4, 8), torch.randint(2, (4,)))
    optimizer = WeightUpdate(torch.optim.AdamW, gradients=Gradients.FREED_LATE)
    with pytest.raises(UnsupportedStrategy, match="gradients='freed_late' keeps gradients on the device"):
        membench.compile(
            network, torch.nn.functional.cross_entropy, batch, strategy=strategy, optimizer=optimizer,
            backend="simulated", device="t4",
        )  # fmt: skip


def test_a_delayed_update_is_refused_by_a_step_that_runs() -> None:
    network = torch.nn.Linear(8, 2)
    batch = torch.randn(4, 8), torch.randint(2, (4,))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    loss, strategy = torch.nn.functional.cross_entropy, ZeroOffload(delayed=True)
    with pytest.raises(UnsupportedStrategy, match="simulated only"):
        membench.compile(network, loss, batch, strategy=strategy, optimizer=optimizer)
    without = membench.compile(network, loss, batch, strategy=strategy)
    assert torch.equal(without(*batch), loss(network(batch[0]), batch[1]))
    without.close()


@pytest.mark.parametrize("strategy", ["zero_offload", "ratel", "superoffload"])
def test_mixed_precision_with_recomputation_trains_as_plain_pytorch(strategy: str) -> None:
    torch.manual_seed(0)
    network, loss = Megatron(layers=1, width=32, heads=2, vocabulary=64), TokenLoss()
    plain = deepcopy(network)
    ours, theirs = MasterAdam(network.parameters()), MasterAdam(plain.parameters())
    tokens = torch.randint(64, (2, 16))
    step = membench.compile(network, loss, (tokens, tokens), strategy=strategy, optimizer=ours)
    for seed in range(2):
        torch.manual_seed(seed)
        step(tokens, tokens)
        torch.manual_seed(seed)
        loss(plain(tokens), tokens).backward()
        theirs.step()
        theirs.zero_grad()
    step.close()
    for weight, other in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(weight, other)
        assert torch.equal(ours.state[weight]["copy"], theirs.state[other]["copy"])


def test_a_step_whose_clipping_bites_is_that_of_plain_pytorch_under_superoffload() -> None:
    """A hook on the optimizer needs all gradients: no update begins before them, and none has to be undone."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    plain, loss = deepcopy(network), torch.nn.functional.cross_entropy
    norms: list[float] = []

    def clips(optimizer: torch.optim.Optimizer, *_: object) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, 0.1)))

    ours, theirs = (torch.optim.AdamW(each.parameters(), lr=0.1) for each in (network, plain))
    for optimizer in (ours, theirs):
        optimizer.register_step_pre_hook(clips)
    batch = torch.randn(8, 16), torch.randint(4, (8,))
    step = membench.compile(network, loss, batch, strategy=SuperOffload(), optimizer=ours)
    for _ in range(3):
        expected = loss(plain(batch[0]), batch[1])
        assert torch.equal(step(*batch), expected)
        expected.backward()
        theirs.step()
        theirs.zero_grad()
    [update] = [task for task in step.schedule.graph.tasks if task.phase is Phase.UPDATE]
    step.close()
    assert update.on_host and min(norms) > 0.1
    assert norms[::2] == norms[1::2]
    for weight, other in zip(network.parameters(), plain.parameters(), strict=True):
        assert torch.equal(weight, other)
