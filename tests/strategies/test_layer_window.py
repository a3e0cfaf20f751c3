"""GreedySnake and MegaTrain: the bits of gradient accumulation in the stated memory, and what visits how often."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import membench
from membench.backends.simulated import SimulatedBackend
from membench.capture.capture import Captures
from membench.conformance.results import run_step
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import Compute, Offload, Prefetch, Schedule
from membench.core.graph.task_graph import Phase, Role, TaskGraph
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.workload import Workload
from membench.execution.executor import execute
from membench.execution.measurement import Throughput
from membench.planning.memory.liveness import live_bytes
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import Strategy
from membench.strategies.greedysnake import GreedySnake
from membench.strategies.joint.strategy import Joint
from membench.strategies.megatrain import MegaTrain
from membench.strategies.zero_infinity import ZeroInfinity
from tests.helpers.networks.blocks import blocks_workload
from tests.helpers.networks.contract import COST
from tests.helpers.steps.micro_batches import accumulate
from tests.helpers.steps.updates import MAKERS, first_difference

BATCH, MICRO_BATCH, BLOCKS = 6, 2, 4
EACH: dict[str, Callable[..., Strategy]] = {
    "greedysnake": GreedySnake,
    "greedysnake, updates deferred": lambda **options: GreedySnake(deferred_share=0.5, **options),
    "megatrain": MegaTrain,
    "megatrain, updates behind": lambda **options: MegaTrain(updates_beside=False, **options),
}


def schedule_of(strategy: Strategy, micro_batch: int = MICRO_BATCH, optimizer: str = "adamw") -> Schedule:
    """Return the schedule of the last part of a step, which updates the weights."""
    work = blocks_workload(BATCH, BLOCKS)
    by = WeightUpdate(MAKERS[optimizer](work.module.parameters()))
    step = build_step(Captures(work), COST, StepRequest(strategy, micro_batch=micro_batch, optimizer=by))
    [*_, run] = step.plan
    step.close()
    return run.schedule


def copies(schedule: Schedule, kind: type[Offload] | type[Prefetch], role: Role) -> Counter[str]:
    blocks = schedule.graph.blocks
    found = (blocks[item.block] for item in schedule.instructions if isinstance(item, kind))
    return Counter(block.name for block in found if block.role is role)


def check_accumulated(batch_size: int, micro_batch: int, bucket_bytes: int, **options: bool) -> None:
    work = blocks_workload(batch_size, **options)
    buffers = {name: buffer.clone() for name, buffer in work.module.named_buffers()}
    expected = run_step(work, lambda: accumulate(work, micro_batch), buffers)
    strategy = GreedySnake(bucket_bytes=bucket_bytes)
    step = build_step(Captures(work), COST, StepRequest(strategy, micro_batch=micro_batch))
    count, rest = divmod(batch_size, micro_batch)
    assert [run.samples for run in step.plan] == [samples for samples in (count * micro_batch, rest) if samples]
    expected.check(run_step(work, lambda: step(work.inputs, work.targets), buffers), rounding=0.0)
    measured = step.measure(samples=Throughput(batch_size, 1, (1.0,)))
    assert measured.peak_bytes == step.predicted_peak_bytes
    step.close()


@pytest.mark.accelerator
@pytest.mark.parametrize(("batch_size", "micro_batch", "has_more"), [(6, 2, False), (5, 2, True)])
def test_micro_batches_layer_by_layer_accumulate_as_pytorch_does(
    batch_size: int, micro_batch: int, has_more: bool
) -> None:
    bucket_bytes = 1 if has_more else 10**6
    check_accumulated(batch_size, micro_batch, bucket_bytes, shared=has_more, statistics=has_more)


@pytest.mark.slow
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batch_size=st.integers(4, 7),
    micro_batch=st.integers(1, 3),
    bucket_bytes=st.sampled_from([1, 1000, 10**6]),
    shared=st.booleans(),
    statistics=st.booleans(),
)
def test_any_micro_batches_layer_by_layer_accumulate_as_pytorch_does(
    batch_size: int, micro_batch: int, bucket_bytes: int, shared: bool, statistics: bool
) -> None:
    check_accumulated(batch_size, micro_batch, bucket_bytes, shared=shared, statistics=statistics)


def accumulated_loss(work: Workload, inputs: Tensor, targets: Tensor) -> Tensor:
    """Add gradients up over micro-batches from none, in plain PyTorch, and return the loss."""
    assert work.loss is not None
    total = torch.zeros((), device=inputs.device)
    for part, target in zip(inputs.split(MICRO_BATCH), targets.split(MICRO_BATCH), strict=True):
        loss, share = work.loss(work.module(part), target), len(part) / len(inputs)
        (loss * share).backward()
        total.add_(loss.detach(), alpha=share)
    return total


@pytest.mark.parametrize("name", EACH)
def test_steps_with_updates_are_those_of_plain_pytorch(name: str) -> None:
    check_steps(EACH[name](), blocks_workload(BATCH, BLOCKS))


@pytest.mark.slow
def test_joint_computes_layer_by_layer_within_a_budget_that_is_too_small_for_micro_batches_in_turn() -> None:
    work = blocks_workload(2 * MICRO_BATCH, 2, width=64)
    assert check_steps(Joint(), work, budget=150_000).parts


def check_steps(strategy: Strategy, work: Workload, budget: int | None = None) -> TaskGraph:
    """Check the results and the peak of three steps, and return the graph of their last part."""
    plain = deepcopy(work)
    by, other = (MAKERS["adamw"](each.module.parameters()) for each in (work, plain))
    step = membench.compile(
        work.module,
        work.loss,
        (work.inputs, work.targets),
        strategy=strategy,
        micro_batch=MICRO_BATCH,
        optimizer=by,
        budget=budget,
    )
    assert not isinstance(step, membench.SimulatedStep)
    for _ in range(3):
        other.zero_grad()
        expected = accumulated_loss(plain, *plain.inputs, *plain.targets)
        other.step()
        assert torch.equal(step(work.inputs, work.targets), expected)
    step.restore()
    assert not first_difference(work.module, plain.module)
    assert step.measure().peak_bytes == step.predicted_peak_bytes
    step.close()
    return step.plan[-1].schedule.graph


@pytest.mark.parametrize("micro_batch", [1, 3])
def test_weights_and_gradients_move_as_often_for_any_number_of_micro_batches(micro_batch: int) -> None:
    schedule = schedule_of(GreedySnake(), micro_batch)
    weights = copies(schedule, Prefetch, Role.WEIGHT)
    inner = {name: count for name, count in weights.items() if name.startswith("blocks.")}
    assert set(inner.values()) <= {1, 2} and inner["blocks.0.rise.weight"] == 2
    gradients = copies(schedule, Offload, Role.APPLIED_GRADIENT)
    assert set(gradients.values()) == {1} and len(gradients) == len(schedule.graph.gradients)
    assert not copies(schedule, Prefetch, Role.APPLIED_GRADIENT) + copies(schedule, Prefetch, Role.ACCUMULATED)


def test_weights_move_once_for_each_micro_batch_under_zero_infinity() -> None:
    work = blocks_workload(BATCH, BLOCKS)
    options = {"micro_batch": 1, "optimizer": WeightUpdate(MAKERS["sgd"](work.module.parameters()))}
    moved = []
    for strategy in (GreedySnake(), ZeroInfinity(ahead=1, reuse_bytes=0)):
        step = build_step(Captures(work), COST, StepRequest(strategy, **options))
        moved.append(sum(run.count * copies(run.schedule, Prefetch, Role.WEIGHT).total() for run in step.plan))
        step.close()
    assert moved[1] > (BATCH - 1) * moved[0]


@pytest.mark.parametrize("strategy", [GreedySnake(), MegaTrain()])
def test_a_window_of_layers_is_on_the_device(strategy: Strategy) -> None:
    schedule = schedule_of(strategy)
    sizes = Counter[str]()
    for block in schedule.graph.blocks:
        if block.role is Role.WEIGHT:
            sizes[".".join(block.name.split(".")[:2])] += block.size_bytes
    assert max(live_bytes(schedule, frozenset({Role.WEIGHT}))) <= 2 * max(sizes.values()) < sizes.total() / 2


@pytest.mark.parametrize("name", EACH)
def test_updates_run_beside_the_backward_pass_or_behind_it(name: str) -> None:
    schedule = schedule_of(EACH[name]())
    tasks = [schedule.graph.tasks[item.task] for item in schedule.instructions if isinstance(item, Compute)]
    first = next(place for place, task in enumerate(tasks) if task.on_host)
    is_beside = any(task.phase is Phase.BACKWARD for task in tasks[first:])
    assert is_beside is (name != "megatrain, updates behind")
    timeline = execute(schedule, SimulatedBackend(schedule.graph, COST))
    of_host = min(span.start_s for span in timeline.spans if span.stream == "host")
    end_of_passes = max(span.end_s for span in timeline.spans if span.stream == "compute")
    assert (of_host < end_of_passes) is is_beside


def test_layers_are_computed_again_from_what_is_handed_on() -> None:
    schedule = schedule_of(GreedySnake())
    again = [task.name for task in schedule.graph.tasks if task.is_recomputed]
    for number in range(BATCH // MICRO_BATCH):
        assert any(name.startswith(f"micro-batch {number}: blocks.0.rise") for name in again)
    assert not any("head" in name for name in again)
    left = copies(schedule, Offload, Role.ACTIVATION)
    assert len(left) >= (BLOCKS - 1) * BATCH // MICRO_BATCH


def test_micro_batches_that_draw_random_numbers_are_refused() -> None:
    work = blocks_workload(BATCH)
    module = torch.nn.Sequential(work.module, torch.nn.Dropout(0.1))
    given = module, work.loss, (work.inputs, work.targets)
    with pytest.raises(UnsupportedStrategy, match="draws random numbers, which micro-batches layer by layer"):
        membench.compile(*given, strategy="greedysnake", micro_batch=MICRO_BATCH)
    step = membench.compile(*given, strategy="greedysnake")
    assert not isinstance(step, membench.SimulatedStep)
    step.close()


def test_deferred_updates_shorten_a_step_that_the_processor_limits() -> None:
    work = blocks_workload(8, 2 * BLOCKS, width=1024)
    given = work.module, work.loss, (work.inputs, work.targets)
    times_s = [
        membench.predict(
            *given,
            strategy=GreedySnake(deferred_share=share),
            device="h100",
            machine="desktop",
            optimizer="adamw",
            accumulate=4,
        ).step_time_s
        for share in (0.0, 0.5)
    ]
    assert times_s[1] < times_s[0]


def test_predictions_have_the_order_of_layers() -> None:
    work = blocks_workload(2, BLOCKS, width=1024)  # so that copies of weights take most of the time
    options = {"device": "rtx4090", "optimizer": "adamw", "accumulate": 4}
    given = work.module, work.loss, (work.inputs, work.targets)
    found = membench.predict(*given, strategy="greedysnake", **options)
    other = membench.predict(*given, strategy=ZeroInfinity(ahead=1, reuse_bytes=0), **options)
    assert found.batch_size == other.batch_size == 8
    assert found.step_time_s < other.step_time_s
