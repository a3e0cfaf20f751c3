"""The update in a graph: behind the backward pass, with freed or kept gradients, under every strategy and exchange."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from membench.capture.capture import Captures, capture
from membench.core.errors import InfeasibleSchedule, InvalidSchedule, MembenchError, UnsupportedStrategy
from membench.core.graph.schedule import AllReduce, Compute, Prefetch, Schedule, Wait
from membench.core.graph.task_graph import AFTER_THE_LOSS, Phase, Role, TaskGraph
from membench.core.step.optimizer import Gradients, WeightUpdate
from membench.core.step.workload import Workload
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import live_bytes
from membench.planning.parallel.exchange import Exchange, exchange_gradients
from membench.planning.rewrites.update import add_update, undivided, updated_workload
from membench.steps.plan import StepPlanner, plan
from membench.strategies.base import Strategy, find_strategy
from membench.strategies.eager import Eager
from membench.strategies.memonger import Memonger
from membench.strategies.superneurons import SuperNeurons
from tests.helpers.networks.random_networks import PLANS, Layers, random_workload
from tests.helpers.planning.costs import UnitCost
from tests.helpers.steps.updates import MAKERS, WAYS, captured
from tests.helpers.steps.variants import VARIANTS

LAYER_WINDOWS = ("greedysnake", "megatrain")
"""Methods that update a layer's weights beside the backward pass, also where the update was one at the end."""

WIDTH, SAMPLES = 100, 2
WEIGHT_BYTES = 4 * WIDTH * WIDTH


def linear_layers() -> Workload:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False))
    return Workload(
        "linear", module, nn.CrossEntropyLoss(), (torch.randn(SAMPLES, WIDTH),), (torch.randint(9, (SAMPLES,)),)
    )


def updated(
    work: Workload, name: str, options: dict[str, Any] | None = None, *, is_whole: bool = False, **of_update: Any
) -> TaskGraph:
    by = WeightUpdate(MAKERS[name], **of_update)
    update = captured(name, options=options, **of_update)
    return add_update(capture(updated_workload(work, by)).graph, undivided(update) if is_whole else update)


def held_by_the_update(schedule: Schedule) -> list[int]:
    tasks = schedule.graph.tasks
    return [
        size
        for item, size in zip(schedule.instructions, live_bytes(schedule), strict=True)
        if isinstance(item, Compute) and tasks[item.task].phase is Phase.UPDATE
    ]


@pytest.mark.parametrize(
    ("name", "options", "weights"),
    [
        ("sgd", {}, 2 * 2),  # weights and gradients of two layers
        ("sgd", {"options": {"weight_decay": 0.1}}, 2 * 3),
        ("momentum", {}, 2 * 3),
        ("adam", {}, 2 * 5),  # two states and the roots of the second moments
        ("adamw", {}, 2 * 5),
        ("adamw", {"options": WAYS["for_loop"]}, 2 * 4 + 2),  # the first layer's root and denominator
        ("adamw", {"options": WAYS["fused"]}, 2 * 4),
        ("adamw", {"options": WAYS["fused"], "gradients": "kept"}, 2 * 4),
        ("adamw", {"options": WAYS["fused"], "ema": True}, 2 * 5),
    ],
)
def test_the_peak_is_in_a_whole_update_where_the_batch_is_small(
    name: str, options: dict[str, Any], weights: int
) -> None:
    work = linear_layers()
    steps_bytes = 2 * 4 if options.get("options") == WAYS["fused"] else 0  # on the device
    schedule = plan(updated(work, name, is_whole=True, **options), Eager(), UnitCost(), None)
    batch_bytes = 4 * SAMPLES * WIDTH + 8 * SAMPLES
    loss_bytes = 4  # a float, which an accumulating step holds as well
    first_bytes = held_by_the_update(schedule)[0]
    assert first_bytes == weights * WEIGHT_BYTES + batch_bytes + loss_bytes + steps_bytes
    has_temporaries = any(task.workspace_bytes for task in schedule.graph.tasks)
    assert schedule.peak_bytes == first_bytes or not has_temporaries


def test_freed_gradients_are_no_results_and_kept_ones_exist_throughout() -> None:
    work = linear_layers()
    without = capture(work).graph
    freed, kept = updated(work, "momentum"), updated(work, "momentum", gradients=Gradients.KEPT)
    assert without.result_bytes - freed.result_bytes == 2 * WEIGHT_BYTES
    assert freed.external_bytes == without.external_bytes + 2 * WEIGHT_BYTES  # the states
    assert kept.external_bytes == freed.external_bytes + 2 * WEIGHT_BYTES + 4  # and the loss
    assert not any(block.role is Role.WEIGHT_GRADIENT for block in freed.blocks)
    written = {block for task in kept.tasks if task.phase is Phase.UPDATE for block in task.writes}
    assert {value.block for _, value in kept.gradients if value} <= written  # zeroed


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    layers=PLANS,
    name=st.sampled_from(sorted(MAKERS)),
    runs=st.sampled_from(sorted(WAYS)),
    gradients=st.sampled_from([Gradients.FREED, Gradients.KEPT]),  # those that are freed late are plain PyTorch's alone
    exchange=st.sampled_from([None, *Exchange]),
)
def test_every_strategy_schedules_the_update_after_the_means(
    layers: Layers, name: str, runs: str, gradients: Gradients, exchange: Exchange | None
) -> None:
    is_whole = exchange is Exchange.AT_END
    graph = updated(random_workload(layers), name, WAYS[runs], is_whole=is_whole, gradients=gradients)
    for strategy in VARIANTS.values():
        schedule = plan(graph, strategy, UnitCost(), None)
        assert schedule.peak_bytes >= schedule.graph.lower_bound_bytes
        is_on_host = any(task.on_host for task in schedule.graph.tasks)
        phases = [schedule.graph.tasks[i.task].phase for i in schedule.instructions if isinstance(i, Compute)]
        updates_at_end = set(phases[phases.index(Phase.UPDATE) :]) == {Phase.UPDATE}
        at_end = (is_whole and strategy.name not in LAYER_WINDOWS) or strategy.name == "pytorch"
        assert updates_at_end or not at_end
        averaged = {value.block for _, value in schedule.graph.gradients if value}
        at = [n for n, i in enumerate(schedule.instructions) if isinstance(i, Compute)][phases.index(Phase.UPDATE)]
        back = {i.block for i in schedule.instructions[at:] if isinstance(i, Prefetch)}
        if is_whole and (is_on_host or back & averaged):
            with pytest.raises(UnsupportedStrategy, match="moves gradients, or their sums, to host memory"):
                exchange_gradients(schedule, Exchange.AT_END)
        elif exchange:
            exchanged = exchange_gradients(schedule, exchange)
            validate(exchanged, budget_bytes=schedule.peak_bytes, exchanges=True)
            assert {i.block for i in exchanged.instructions if isinstance(i, AllReduce)} == averaged


@pytest.mark.parametrize("exchange", Exchange)
def test_an_update_that_does_not_wait_for_a_mean_is_refused(exchange: Exchange) -> None:
    graph = updated(linear_layers(), "adam", is_whole=exchange is Exchange.AT_END)
    schedule = exchange_gradients(plan(graph, Eager(), UnitCost(), None), exchange)
    means = [i for i, item in enumerate(schedule.instructions) if isinstance(item, AllReduce)]
    [wait, *_] = [
        i for i, item in enumerate(schedule.instructions) if isinstance(item, Wait) and item.instruction == means[-1]
    ]
    changed = list(schedule.instructions)
    changed[wait] = Wait("compute", means[0])
    with pytest.raises(InvalidSchedule, match="while a mean over processes"):
        validate(replace(schedule, instructions=tuple(changed)), exchanges=True)


def test_an_update_before_the_mean_is_refused() -> None:
    schedule = plan(updated(linear_layers(), "sgd"), Eager(), UnitCost(), None)
    with pytest.raises(InvalidSchedule, match="is applied before it was averaged"):
        validate(schedule, exchanges=True)


@pytest.mark.parametrize(("size", "counts"), [(2, [1, 1]), (3, [1, 1]), (4, [1]), (1, [3, 1])])
def test_micro_batches_update_once_and_hold_the_states_throughout(size: int, counts: list[int]) -> None:
    work = replace(linear_layers(), inputs=(torch.randn(4, WIDTH),), targets=(torch.randint(9, (4,)),))
    update = captured("momentum")
    runs = StepPlanner(Captures(work).graph_at, 4, Eager(), UnitCost(), update=update, micro_batch=size).within(None)
    assert [run.count for run in runs] == counts
    updates = [sum(task.phase is Phase.UPDATE for task in run.schedule.graph.tasks) for run in runs]
    assert updates == [0] * (len(runs) - 1) + [2]  # one for each layer
    for run in runs:
        states = [b.size_bytes for b in run.schedule.graph.blocks if b.role is Role.OPTIMIZER_STATE]
        assert states == [WEIGHT_BYTES, WEIGHT_BYTES]


def test_weights_without_a_gradient_are_left_alone() -> None:
    work = linear_layers()
    work.module[0].requires_grad_(False)
    [task] = [task for task in updated(work, "adam").tasks if task.phase is Phase.UPDATE]
    assert len(task.reads) == 4 and len(task.writes) == 3


def test_inference_has_nothing_to_update() -> None:
    work = linear_layers()
    with pytest.raises(MembenchError, match="no gradients"):
        updated_workload(Workload("linear", work.module.eval(), None, work.inputs), WeightUpdate(torch.optim.SGD))


@pytest.mark.parametrize("method", [Memonger(), SuperNeurons()], ids=lambda item: item.name)
def test_an_update_does_not_keep_a_method_from_recomputing(method: Strategy) -> None:
    layers = [part for _ in range(9) for part in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    module = nn.Sequential(*layers, nn.Flatten())
    work = Workload("layers", module, nn.CrossEntropyLoss(), (torch.randn(4, 8, 8, 8),), (torch.randint(9, (4,)),))

    def recomputed(graph: TaskGraph) -> list[str]:
        schedule = plan(graph, method, UnitCost(), None)
        return [task.name for task in schedule.graph.tasks if task.is_recomputed]

    without = recomputed(capture(work).graph)
    assert without
    assert recomputed(updated(work, "momentum", is_whole=True)) == without
    assert recomputed(updated(work, "momentum"))  # perhaps others, because gradients do not add up


# ---- in the backward pass -------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(layers=PLANS, name=st.sampled_from(sorted(MAKERS)), room=st.floats(0, 1))
def test_every_strategy_schedules_updates_in_the_backward_pass(layers: Layers, name: str, room: float) -> None:
    work = random_workload(layers)
    graph = updated(work, name, in_backward=True)
    updates = {task.index for task in graph.tasks if task.phase is Phase.UPDATE}
    for variant, strategy in VARIANTS.items():
        schedule = plan(graph, strategy, UnitCost(), None)
        names = [task.name for task in schedule.graph.tasks if task.phase is Phase.UPDATE]
        assert sorted(names) == sorted(graph.tasks[index].name for index in updates), variant
        exchanged = exchange_gradients(schedule, Exchange.AS_MADE)
        validate(exchanged, budget_bytes=schedule.peak_bytes, exchanges=True)
    least, most = graph.lower_bound_bytes, plan(graph, Eager(), UnitCost(), None).peak_bytes
    for name in ("joint", "superneurons", "dtr", "rotor"):
        with suppress(InfeasibleSchedule):
            plan(graph, find_strategy(name)(), UnitCost(), round(least + room * (most - least)))


def test_a_gradient_is_freed_as_soon_as_it_is_applied() -> None:
    layers = [module for _ in range(6) for module in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
    work = replace(linear_layers(), module=nn.Sequential(*layers))
    graph = updated(work, "adamw", WAYS["fused"], in_backward=True)
    in_parts = updated(work, "adamw", WAYS["fused"])
    for each in (graph, in_parts):
        order = [task.name for task in each.tasks if task.phase is Phase.UPDATE]
        assert order == [f"{layer}.weight:update" for layer in (10, 8, 6, 4, 2, 0)]
    at_end = updated(work, "adamw", WAYS["fused"], is_whole=True)
    for strategy in (Eager(), find_strategy("pytorch")()):
        early, parts, late = (plan(each, strategy, UnitCost(), None).peak_bytes for each in (graph, in_parts, at_end))
        assert 4 * WEIGHT_BYTES < late - early <= 5 * WEIGHT_BYTES
        assert parts == (late if strategy.name == "pytorch" else early)


def test_a_weight_is_updated_after_its_last_use() -> None:
    graph = updated(linear_layers(), "sgd", in_backward=True)
    for task in graph.tasks:
        if task.phase is Phase.UPDATE:
            assert all(graph.last_use[block] == task.index for block in task.writes)


def test_an_exchange_at_the_end_finds_no_gradients() -> None:
    schedule = plan(updated(linear_layers(), "sgd", in_backward=True), Eager(), UnitCost(), None)
    with pytest.raises(UnsupportedStrategy, match="leaves no gradients for an exchange at the end"):
        exchange_gradients(schedule, Exchange.AT_END)


def test_an_update_does_not_divide_the_backward_pass_of_a_convolution() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Flatten())
    work = Workload("two", module, nn.CrossEntropyLoss(), (torch.randn(2, 3, 8, 8),), (torch.randint(9, (2,)),))
    graph = updated(work, "sgd", in_backward=True)
    names = [task.name for task in graph.tasks if task.phase in AFTER_THE_LOSS]
    of_module = [name for name in names if not name.startswith("loss")]
    assert of_module == [
        *["1:convolution_backward"] * 2,
        "1.weight:update",
        "1.bias:update",
        "0:convolution_backward",
        "0.weight:update",
        "0.bias:update",
    ]
    joined = plan(graph, find_strategy("pytorch")(), UnitCost(), None).graph.tasks
    assert len([task for task in joined if task.name == "1:convolution_backward"]) == 1
