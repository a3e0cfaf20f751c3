"""Recomputation: the same bits with any activations dropped, and only what may be dropped is."""

import copy
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from membench.backends.cpu import Chaos, CpuBackend
from membench.capture.capture import capture
from membench.conformance.results import Reference, reference_of
from membench.conformance.steps import check_exact
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import EXTERNAL_ROLES, Block, Kind, Phase, Role, Task, TaskGraph
from membench.core.step.workload import Workload
from membench.planning.builder import ScheduleBuilder
from membench.planning.pool import FixedPool, Pool
from membench.planning.rewrites.recompute import Repeatable, Segment, recompute, recomputing_order
from membench.steps.compile import CompiledStep
from membench.strategies.memonger import StoragePool
from membench.strategies.on_demand import compute_on_demand, on_demand_peak_bytes
from tests.helpers.networks.contract import COST
from tests.helpers.networks.random_networks import CHANNELS, PLANS, random_reference
from tests.helpers.planning.costs import UnitCost
from tests.helpers.steps.checks import step_of


def recomputing(graph: TaskGraph, segments: list[Segment]) -> TaskGraph:
    return recompute(Repeatable(graph, UnitCost()), segments)


def on_demand(graph: TaskGraph, pool: Pool | None = None) -> Schedule:
    builder = ScheduleBuilder("on demand", COST.annotate(graph), budget_bytes=None, pool=pool)
    compute_on_demand(builder, builder.graph.tasks)
    return builder.finish()


def made_forward(graph: TaskGraph) -> list[int]:
    return [block for task in graph.tasks if task.phase is Phase.FORWARD for block in task.creates]


def outputs_of(graph: TaskGraph, *layers: str) -> list[int]:
    """Return what these layers make, in order."""
    forward = [task for task in graph.tasks if task.phase is Phase.FORWARD]
    return [block for task in forward if graph.layers[task.layer] in layers for block in task.creates]


def case_of(*layers: nn.Module) -> Reference:
    torch.manual_seed(0)
    arguments = (torch.randn(2, CHANNELS, 6, 6),), (torch.randint(3, (2,)),)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 3))
    return reference_of(Workload("net", nn.Sequential(*layers, *head), nn.functional.cross_entropy, *arguments))


def convolution() -> nn.Conv2d:
    return nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)


def random_segments(graph: TaskGraph, seed: int, count: int) -> list[Segment]:
    """Return segments drawn block by block: most of their blocks cannot be dropped and must stay."""
    draw = random.Random(seed)
    asked: list[list[int]] = [[] for _ in range(count + 1)]
    position = 0
    for block in made_forward(graph):
        position = draw.choice((position, position, draw.randrange(count + 1)))
        asked[position].append(block)
    return [Segment(frozenset(blocks), draw.random() < 0.5) for blocks in asked[1:]]


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layers=PLANS, seed=st.integers(0, 1000), count=st.integers(1, 4))
def test_results_are_exact_with_any_activations_dropped(
    layers: list[tuple[str, int, int]], seed: int, count: int
) -> None:
    case = random_reference(layers, seed)
    graph = case.captured.graph
    rewritten = recomputing(graph, random_segments(graph, seed, count))
    with step_of(case, on_demand(rewritten), Chaos(seed, longest_delay_s=0.0)) as step:
        check_exact(case, step)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(layers=PLANS, seed=st.integers(0, 1000), count=st.integers(1, 4))
def test_an_order_predicts_the_peak_of_its_schedule(layers: list[tuple[str, int, int]], seed: int, count: int) -> None:
    graph = COST.annotate(random_reference(layers, seed).captured.graph)
    repeatable, segments = Repeatable(graph, COST), random_segments(graph, seed, count)
    order, rewritten = recomputing_order(repeatable, segments), recompute(repeatable, segments)
    assert COST.annotate(rewritten) == rewritten
    for told, built in ((FixedPool(0), None), (StoragePool(), StoragePool())):
        peak_bytes = on_demand_peak_bytes(order, told) + rewritten.external_bytes
        assert peak_bytes == on_demand(rewritten, built).peak_bytes


@pytest.mark.parametrize("per_layer", [False, True])
def test_a_task_runs_again_once_or_for_each_layer_that_needs_it(per_layer: bool) -> None:
    case = case_of(*(layer for _ in range(4) for layer in (convolution(), nn.ReLU())))
    graph = recomputing(case.captured.graph, [Segment(frozenset(made_forward(case.captured.graph)), per_layer)])
    runs = Counter(task.name.removesuffix(" again") for task in graph.tasks)
    # The linear layer, a ReLU's backward and all convolutions' but the first depend on the first convolution.
    expected = [1 + 8, 1 + 6, 1 + 4, 1 + 2] if per_layer else [2, 2, 2, 2]
    assert [runs[f"{layer}:convolution"] for layer in (0, 2, 4, 6)] == expected
    with step_of(case, on_demand(graph), Chaos(1, longest_delay_s=0.0)) as step:
        check_exact(case, step)


def test_only_what_is_read_runs_again_right_before_its_first_reader() -> None:
    case = case_of(convolution(), nn.ReLU(), nn.AvgPool2d(2))
    graph = case.captured.graph
    rewritten = recomputing(graph, [Segment(frozenset(outputs_of(graph, "0", "1", "2")))])
    names = [task.name for task in rewritten.tasks]
    [reader] = [position for position, name in enumerate(names) if name == "1:threshold_backward"]
    assert names[reader - 2 : reader] == ["0:convolution again", "1:relu again"]
    assert "2:avg_pool2d again" not in names  # its backward reads only the incoming gradient


def test_what_runs_again_writes_blocks_of_its_own_in_the_backward_pass() -> None:
    graph = case_of(convolution(), nn.BatchNorm2d(CHANNELS), nn.ReLU(inplace=True)).captured.graph
    rewritten = recomputing(graph, [Segment(frozenset(made_forward(graph)))])
    assert rewritten.blocks[: len(graph.blocks)] == graph.blocks
    again = [task for task in rewritten.tasks if task.name.endswith(" again")]
    assert {task.phase for task in again} == {Phase.BACKWARD}
    assert all(block >= len(graph.blocks) for task in again for block in task.writes)
    assert [task.index for task in rewritten.tasks] == list(range(len(rewritten.tasks)))
    assert len({block.name for block in rewritten.blocks}) == len(rewritten.blocks)


def test_nothing_dropped_leaves_the_graph_as_it_was() -> None:
    graph = case_of(convolution(), nn.ReLU()).captured.graph
    assert recomputing(graph, []) == recomputing(graph, [Segment(frozenset())]) == graph


def test_random_tasks_run_once_and_dropout_keeps_its_mask_alone() -> None:
    case = case_of(convolution(), nn.Dropout(0.3), convolution())
    graph = case.captured.graph
    rewritten = recomputing(graph, [Segment(frozenset(made_forward(graph)))])
    assert sum(task.random for task in rewritten.tasks) == 1
    output, mask = outputs_of(graph, "1")
    assert rewritten.last_use[mask] > rewritten.last_use[output]
    assert rewritten.tasks[rewritten.last_use[output]].phase is Phase.FORWARD
    with step_of(case, on_demand(rewritten), Chaos(1, longest_delay_s=0.0)) as step:
        check_exact(case, step)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.9])
def test_the_product_with_the_mask_is_the_output_of_dropout_bit_for_bit(dtype: torch.dtype, probability: float) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(10_000, dtype=dtype)
    output, mask = torch.ops.aten.native_dropout(inputs, probability, True)
    again = torch.ops.aten.native_dropout_backward(inputs, mask, 1 / (1 - probability))
    assert again.numpy().tobytes() == output.numpy().tobytes()


def test_the_output_of_dropout_is_kept_where_its_product_would_round_differently() -> None:
    dropped = nn.Sequential(convolution(), nn.Dropout(0.3), convolution()).to(torch.bfloat16)
    arguments = (torch.randn(2, CHANNELS, 6, 6, dtype=torch.bfloat16),), ()
    graph = capture(Workload("half", dropped, torch.Tensor.sum, *arguments)).graph
    rewritten = recomputing(graph, [Segment(frozenset(made_forward(graph)))])
    assert "1:native_dropout again" not in {task.name for task in rewritten.tasks}
    [output, _] = outputs_of(graph, "1")
    assert rewritten.tasks[rewritten.last_use[output]].phase is Phase.BACKWARD


def test_running_statistics_are_exact_after_several_steps() -> None:
    """Used twice, a batch norm updates its statistics twice a step, and not four times."""
    batch_norm = nn.BatchNorm2d(CHANNELS)
    case = case_of(convolution(), batch_norm, nn.ReLU(inplace=True), convolution(), batch_norm)
    graph = case.captured.graph
    rewritten = recomputing(graph, [Segment(frozenset(made_forward(graph)))])
    assert sum(task.name.endswith("batch_norm again") for task in rewritten.tasks) == 2
    backend = CpuBackend(rewritten)
    step = CompiledStep(case.work, case.captured, on_demand(rewritten), backend)
    expected = copy.deepcopy(case.work.module)
    for _ in range(3):
        step(case.work.inputs, case.work.targets)
        case.work.loss(expected(*case.work.inputs), *case.work.targets)
    backend.close()
    buffers = dict(case.work.module.named_buffers())
    assert all(torch.equal(buffers[name], buffer) for name, buffer in expected.named_buffers())


def graph_without_calls(*tasks: Task, blocks: tuple[Block, ...]) -> TaskGraph:
    numbered = tuple(replace(task, index=index) for index, task in enumerate(tasks))
    return TaskGraph("simulated", 1, blocks, numbered, ("first", "second", "loss"))


def block(index: int, role: Role) -> Block:
    return Block(index, f"block{index}", 100, role, -1 if role in EXTERNAL_ROLES else 0)


def forward(name: str, reads: tuple[int, ...], creates: tuple[int, ...], *, onto: tuple[int, ...] = ()) -> Task:
    return Task(0, name, Kind.OTHER, Phase.FORWARD, 0, (*reads, *onto), (*onto, *creates), creates)


def backward(reads: tuple[int, ...], creates: int) -> Task:
    return Task(0, "backward", Kind.OTHER, Phase.BACKWARD, 1, reads, (creates,), (creates,))


ROLES = (Role.INPUT, Role.ACTIVATION, Role.ACTIVATION, Role.WEIGHT_GRADIENT)
BLOCKS = tuple(block(index, role) for index, role in enumerate(ROLES))


def test_without_calls_statistics_are_left_out_and_dropout_keeps_what_it_holds_inside() -> None:
    statistics, random_numbers = block(4, Role.BUFFER), block(5, Role.INTERNAL)
    graph = graph_without_calls(
        forward("batch norm", (0,), (1,), onto=(4,)),
        replace(forward("dropout", (1,), (5, 2)), random=True),
        backward((1, 2, 5), 3),
        blocks=(*BLOCKS, statistics, random_numbers),
    )
    rewritten = recomputing(graph, [Segment(frozenset({1, 2, 5}))])
    batch_norm, dropout = (task for task in rewritten.tasks if task.name.endswith(" again"))
    assert (batch_norm.reads, batch_norm.writes) == ((0,), (6,))
    assert (dropout.reads, dropout.writes, dropout.random) == ((6, 5), (7,), False)
    assert rewritten.tasks[-1].reads == (6, 7, 5)


def test_what_read_earlier_contents_of_a_block_that_stays_stays_too() -> None:
    """Block 2 is made of block 1, onto which a later task writes: with block 1 kept, it cannot be made again."""
    tasks = (
        forward("first", (0,), (1,)),
        forward("second", (1,), (2,)),
        forward("in place", (), (), onto=(1,)),
        backward((1, 2), 3),
    )
    graph = graph_without_calls(*tasks, blocks=BLOCKS)
    assert recomputing(graph, [Segment(frozenset({2}))]) == graph
    both = recomputing(graph, [Segment(frozenset({1, 2}))])
    assert [task.name for task in both.tasks[3:6]] == ["first again", "second again", "in place again"]
    assert recomputing(graph, [Segment(frozenset({1})), Segment(frozenset({2}))]) == graph


@pytest.mark.parametrize("role", [Role.ACTIVATION, Role.LOSS])
def test_what_is_written_together_with_a_block_that_stays_stays_too(role: Role) -> None:
    """The second task would write onto block 1 again, which stays: not requested, or a result of the step."""
    tasks = forward("first", (0,), (1,)), forward("second", (), (2,), onto=(1,)), backward((1, 2), 3)
    graph = graph_without_calls(*tasks, blocks=(BLOCKS[0], block(1, role), *BLOCKS[2:]))
    assert recomputing(graph, [Segment(frozenset({2} if role is Role.ACTIVATION else {1, 2}))]) == graph


def test_what_the_backward_pass_overwrites_stays() -> None:
    overwrite = replace(backward((1,), 3), reads=(1,), writes=(1, 3))
    graph = graph_without_calls(forward("first", (0,), (1,)), overwrite, blocks=BLOCKS)
    assert recomputing(graph, [Segment(frozenset({1}))]) == graph


def test_what_another_segment_reads_stays() -> None:
    chain = forward("first", (0,), (1,)), forward("second", (1,), (2,)), backward((1, 2), 3)
    graph = graph_without_calls(*chain, blocks=BLOCKS)
    rewritten = recomputing(graph, [Segment(frozenset({1})), Segment(frozenset({2}))])
    assert [task.name for task in rewritten.tasks[2:]] == ["second again", "backward"]
    assert rewritten.tasks[-1].reads == (1, 4)
