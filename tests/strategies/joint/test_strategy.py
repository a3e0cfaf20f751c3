"""Joint: never slower than another lossless method within its peak, and as fast as eager where memory allows."""

import random
from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torchvision.models import DenseNet, ResNet, resnet18
from torchvision.models.resnet import BasicBlock

from membench.capture.capture import Captures, capture
from membench.capture.trace import ANY_GPU
from membench.core.configuration import load
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Offload
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.kernels import WHOLE_STEP
from membench.core.step.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.execution.simulation import step_time_s
from membench.planning.checking.validate import validate
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import NO_LIMIT, Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, Problem
from membench.planning.rewrites.deferred import deferred_updates
from membench.planning.rewrites.update import add_update
from membench.steps.compile import build_step
from membench.steps.plan import plan
from membench.steps.predicted.fused_graphs import step_graphs
from membench.steps.request import StepRequest
from membench.strategies.base import find_strategy
from membench.strategies.joint.homes import Homes
from membench.strategies.joint.planner import Planner
from membench.strategies.joint.strategy import HALVINGS, STRIDES, Joint, _lowest
from membench.strategies.layrub.strategy import LayrubHybrid
from membench.sweep.cells.model import Model
from tests.helpers.networks.contract import COST as MEASURED
from tests.helpers.planning.chains import chain_of_convolutions, chain_of_sizes, graph_of
from tests.helpers.planning.costs import UnitCost
from tests.helpers.planning.graphs import COST
from tests.helpers.steps.updates import WAYS, captured

K40M = RooflineCost(load("device", "k40m"), load("framework", "pytorch").efficiency, load("machine", "server"))
LOSSLESS = ("best_fit", "geeps", "gist", "layrub_hybrid", "layrub_inter", "memonger", "superneurons", "vdnn_all")


@pytest.fixture(scope="module")
def graph() -> TaskGraph:
    with torch.device("meta"):
        return graph_of(resnet18(), 3, 224)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSLESS)
def test_it_is_not_slower_than_another_method_at_its_peak(graph: TaskGraph, name: str) -> None:
    other = plan(graph, find_strategy(name)(), K40M, None)
    schedule = plan(graph, Joint(), K40M, other.peak_bytes)
    assert step_time_s(schedule, K40M) <= step_time_s(other, K40M) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["capuchin", "dtr", "pofo", "rotor"])
@pytest.mark.parametrize("share", [0.75, 0.5])
def test_it_is_not_slower_than_a_published_planner_within_the_same_budget(name: str, share: float) -> None:
    graph = chain_of_convolutions(9, normalized=True)
    budget_bytes = int(share * plan(graph, find_strategy("eager")(), K40M, None).peak_bytes)
    other = plan(graph, find_strategy(name)(), K40M, budget_bytes)
    schedule = plan(graph, Joint(), K40M, budget_bytes)
    assert step_time_s(schedule, K40M) <= step_time_s(other, K40M) * (1 + 1e-9)


@pytest.mark.slow
def test_a_tiny_graph_takes_as_long_as_by_checkmate_at_most() -> None:
    graph, cost = chain_of_sizes([4, 3, 4, 5, 4]), UnitCost()
    most_bytes = plan(graph, find_strategy("eager")(), cost, None).peak_bytes
    for share in (0.7, 0.8, 0.9):
        other, schedule = (
            plan(graph, find_strategy(name)(), cost, int(share * most_bytes)) for name in ("checkmate", "joint")
        )
        assert step_time_s(schedule, cost) <= step_time_s(other, cost) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["capuchin", "dtr", "pofo"])
def test_another_methods_schedule_is_taken_where_it_is_faster(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain_of_convolutions(9, normalized=True)

    def nothing(self: Planner, budget_bytes: int, moments: int = 0) -> None:
        return None

    budget_bytes = plan(graph, find_strategy("eager")(), K40M, None).peak_bytes // 2
    method = find_strategy(name)()
    monkeypatch.setattr(Planner, "begun", nothing)
    monkeypatch.setattr("membench.strategies.joint.others.METHODS", (method,))
    taken, given = (plan(graph, each, K40M, budget_bytes) for each in (Joint(), method))
    assert taken.instructions == given.instructions
    assert (taken.strategy, given.strategy) == ("joint", name)


SMALL_NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "convolutions": (
        lambda: nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(5)), nn.AvgPool2d(32), nn.Flatten()), 8
    ),
    "densenet": (lambda: DenseNet(growth_rate=8, block_config=(2, 2), num_init_features=8, num_classes=10), 3),
    "resnet": (lambda: ResNet(BasicBlock, [1, 1, 1, 1], 10), 3),
}  # fmt: skip
"""With the channels of their images."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_NETWORKS)
def test_the_budget_that_a_refusal_names_is_kept(name: str) -> None:
    build, channels = SMALL_NETWORKS[name]
    with torch.device("meta"):
        network = graph_of(build(), channels, 32)
    with pytest.raises(InfeasibleSchedule) as refusal:
        plan(network, Joint(), K40M, network.lower_bound_bytes // 3)
    needed_bytes = refusal.value.needed_bytes
    assert plan(network, Joint(), K40M, needed_bytes).peak_bytes <= needed_bytes


def test_without_a_budget_it_takes_eagers_time_with_less_memory(graph: TaskGraph) -> None:
    eager = plan(graph, find_strategy("eager")(), K40M, None)
    schedule = plan(graph, Joint(), K40M, None)
    eager_s = step_time_s(eager, K40M)
    assert step_time_s(schedule, K40M) == pytest.approx(eager_s, rel=1e-9)
    assert schedule.peak_bytes < 0.9 * eager.peak_bytes
    found = dict(schedule.decisions)
    assert found["lower_bound_s"] == pytest.approx(eager_s, rel=1e-3)  # less the host's time before the first kernel
    assert found["gap"] == pytest.approx(eager_s / found["lower_bound_s"] - 1, abs=1e-9)


def test_without_a_budget_nothing_leaves_where_copies_delay_kernels(graph: TaskGraph) -> None:
    class Delayed(RooflineCost):
        def copy_delay_s(self, size_bytes: int) -> float:
            return 1e-4

    cost = Delayed(load("device", "k40m"), load("framework", "pytorch").efficiency, load("machine", "server"))
    schedule = plan(graph, Joint(), cost, None)
    assert not any(isinstance(instruction, Offload) for instruction in schedule.instructions)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["modnn", "torch7"])
def test_it_chooses_algorithms_as_well_as_a_method_that_chooses_them_alone(graph: TaskGraph, framework: str) -> None:
    chosen = load("framework", framework)
    cost, lowered = RooflineCost(load("device", "k40m"), chosen.efficiency), chosen.lower(graph)
    eager = plan(lowered, find_strategy("eager")(), cost, None)
    alone = plan(lowered, find_strategy("vdnn_dyn")(), cost, None)
    fastest_s = step_time_s(alone, cost)
    assert fastest_s < 0.98 * step_time_s(eager, cost)
    without_budget = plan(lowered, Joint(), cost, None)
    assert step_time_s(without_budget, cost) == pytest.approx(fastest_s, rel=1e-9)
    for share in (1.0, 0.9, 0.8):
        budget_bytes = int(share * alone.peak_bytes)
        schedule = plan(lowered, Joint(), cost, budget_bytes)
        step_s, bound_s = step_time_s(schedule, cost), dict(schedule.decisions)["lower_bound_s"]
        rival_s = step_time_s(plan(lowered, find_strategy("vdnn_dyn")(), cost, budget_bytes), cost)
        assert fastest_s * (1 - 1e-9) <= bound_s <= step_s <= rival_s * (1 + 1e-9)
        assert step_s <= bound_s * 1.15


@pytest.mark.slow
def test_encodings_that_help_only_together_are_found() -> None:
    cost = RooflineCost(load("device", "rtx3090"), load("framework", "pytorch").efficiency, load("machine", "server"))
    workload = Model.named("vgg16").workload(32, seed=0, device="meta")
    captures = Captures(workload, ANY_GPU, uses_values=True)
    eager, compiled = (step_graphs(captures, parts).graph_at(32) for parts in (None, WHOLE_STEP))
    budget_bytes = int(0.6 * plan(eager, find_strategy("eager")(), cost, None).peak_bytes)
    one, other = (step_time_s(plan(each, Joint(), cost, budget_bytes), cost) for each in (compiled, eager))
    assert one <= other


def test_nothing_leaves_where_everything_fits(graph: TaskGraph) -> None:
    eager = plan(graph, find_strategy("eager")(), K40M, None)
    assert plan(graph, Joint(), K40M, eager.peak_bytes).note == eager.note


@pytest.mark.slow
def test_a_smaller_budget_takes_longer_until_it_is_refused(graph: TaskGraph) -> None:
    most_bytes = plan(graph, find_strategy("eager")(), K40M, None).peak_bytes
    with pytest.raises(InfeasibleSchedule) as refusal:
        plan(graph, Joint(), K40M, 1)
    least_bytes = refusal.value.needed_bytes
    budgets = [least_bytes, (2 * least_bytes + most_bytes) // 3, most_bytes]
    schedules = [plan(graph, Joint(), K40M, budget_bytes) for budget_bytes in budgets]
    times_s = [step_time_s(schedule, K40M) for schedule in schedules]
    assert times_s == sorted(times_s, reverse=True)
    for schedule, time_s in zip(schedules, times_s, strict=True):
        found = dict(schedule.decisions)
        assert found["lower_bound_s"] <= time_s * (1 + 1e-9)
        assert found["gap"] == pytest.approx(time_s / found["lower_bound_s"] - 1, abs=1e-9)


def test_the_certificate_is_printed(graph: TaskGraph) -> None:
    schedule = plan(graph, Joint(), COST, None)
    assert "no schedule takes less than" in str(schedule)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_less_memory_than_weights_and_states_need_is_enough(name: str) -> None:
    graph = updated_layers(24, name)
    budget_bytes = graph.external_bytes * 3 // 4
    with pytest.raises(InfeasibleSchedule):
        plan(graph, LayrubHybrid(), COST, budget_bytes)
    schedule = plan(graph, Joint(), COST, budget_bytes)
    assert schedule.peak_bytes <= budget_bytes
    found = dict(schedule.decisions)
    assert found["lower_bound_s"] <= step_time_s(schedule, COST) <= 1.35 * found["lower_bound_s"]
    at_home = {block.index for block in schedule.graph.blocks if block.host_location}
    on_host = [task for task in schedule.graph.tasks if task.on_host]
    assert on_host and at_home == {block for task in on_host for block in task.writes}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_short_step_is_close_to_the_bound_of_all_updates_on_the_host(name: str) -> None:
    """The bound over every choice of updates is lower: it moves fractions of them."""
    graph = updated_layers(6, name)
    budget_bytes = graph.external_bytes * 3 // 4
    homes = Homes(graph, COST)
    bound_s = Planner(homes.at(len(homes.parts)), COST).least_s(budget_bytes)
    assert step_time_s(plan(graph, Joint(), COST, budget_bytes), COST) <= 1.15 * bound_s


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_deferred_updates_are_never_slower_and_keep_their_bound(name: str) -> None:
    graph = updated_layers(6, name)
    budget_bytes = graph.external_bytes * 3 // 4
    in_time, deferred = (plan(graph, Joint(defers_updates=defers), COST, budget_bytes) for defers in (False, True))
    assert step_time_s(deferred, COST) <= step_time_s(in_time, COST)
    assert dict(deferred.decisions)["lower_bound_s"] <= step_time_s(deferred, COST)
    assert not deferred_updates(in_time.graph)


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_no_plan_with_deferred_updates_is_faster_than_the_bound(share: float) -> None:
    homes, rng = Homes(updated_layers(4, "adamw"), COST), random.Random(1)
    planner = Planner(homes.at(len(homes.parts)), COST, homes.residences, defers=True)
    problem = Problem(homes.at(len(homes.parts)), COST, 1)
    for _ in range(10):
        choices = [rng.choice((KEEP, OFFLOAD, RECOMPUTE) if unit.makers else (KEEP, OFFLOAD)) for unit in problem.units]
        found = emit("any", Evaluator(problem).plan(choices, NO_LIMIT), None, deferred_share=share)
        validate(found)
        assert deferred_updates(found.graph)
        assert planner.least_s(found.peak_bytes) <= step_time_s(found, COST) * (1 + 1e-9)


def test_a_budget_below_what_any_schedule_needs_is_not_searched(
    graph: TaskGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    def begun(self: Planner, budget_bytes: int, moments: int = 0) -> None:
        searched.append(budget_bytes)

    monkeypatch.setattr(Planner, "begun", begun)
    with pytest.raises(InfeasibleSchedule):
        plan(graph, Joint(), K40M, Planner(graph, K40M).lower_bound_bytes // 2)
    assert not searched


@given(start=st.integers(0, 50), count=st.integers(1, 200), data=st.data())
def test_a_number_near_the_lowest_is_found_in_a_valley(start: int, count: int, data: st.DataObject) -> None:
    numbers = range(start, start + count)
    lowest = data.draw(st.sampled_from(numbers))
    asked = list[int]()

    def value(number: int, below: float) -> float:
        asked.append(number)
        found = float(abs(number - lowest))
        return found if found < below else inf

    assert abs(_lowest(numbers, value) - lowest) <= ceil(count / STRIDES / 2**HALVINGS) + 1
    assert set(asked) <= set(numbers)
    assert len(asked) <= STRIDES + 1 + 2 * HALVINGS


def updated_layers(number: int, name: str) -> TaskGraph:
    """Return a step of linear layers, with an optimizer's update."""
    update = captured(name, options=WAYS["for_loop"])
    layers = [module for _ in range(number) for module in (nn.Linear(64, 64), nn.ReLU())]
    with torch.device("meta"):
        batch = (torch.empty(2, 64),), (torch.empty(2, dtype=torch.int64),)
        work = Workload("wide", nn.Sequential(*layers), nn.CrossEntropyLoss(), *batch)
    return COST.annotate(add_update(capture(work).graph, update))


@pytest.mark.slow
def test_weights_leave_where_that_is_faster() -> None:
    layers = [module for _ in range(8) for module in (nn.Linear(1024, 1024), nn.ReLU())]
    with torch.device("meta"):
        batch = (torch.empty(4096, 1024),), (torch.empty(4096, dtype=torch.int64),)
        work = Workload("wide", nn.Sequential(*layers), nn.CrossEntropyLoss(), *batch)
    graph = K40M.annotate(capture(work).graph)
    most_bytes = plan(graph, find_strategy("eager")(), K40M, None).peak_bytes
    budgets = [round(graph.lower_bound_bytes * (1 - share) + most_bytes * share) for share in (0.05, 0.1, 1)]
    staying = replace(graph, weights_stay=True)
    with pytest.raises(InfeasibleSchedule):
        plan(staying, Joint(), K40M, budgets[0])
    if_they_stay = [plan(staying, Joint(), K40M, budget_bytes) for budget_bytes in budgets[1:]]
    if_faster = [plan(graph, Joint(), K40M, budget_bytes) for budget_bytes in budgets]
    assert not any(block.host_location for kept in if_they_stay for block in kept.graph.blocks)
    for kept, free in zip(if_they_stay, if_faster[1:], strict=True):
        bound_s, step_s = dict(free.decisions)["lower_bound_s"], step_time_s(free, K40M)
        assert bound_s <= step_s <= step_time_s(kept, K40M) * (1 + 1e-9)
    times_s = [step_time_s(free, K40M) for free in if_faster]
    assert times_s == sorted(times_s, reverse=True)
    assert times_s[1] < 0.95 * step_time_s(if_they_stay[0], K40M)
    at_home = [any(block.host_location for block in free.graph.blocks) for free in if_faster]
    assert at_home == [True, True, False], "they leave only where that makes the step faster"


@pytest.mark.slow
def test_a_step_whose_weights_come_from_the_host_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    layers = [module for _ in range(6) for module in (nn.Linear(64, 64), nn.ReLU())]
    module, images, labels = nn.Sequential(*layers), torch.randn(2, 64), torch.randint(64, (2,))
    expected = nn.functional.cross_entropy(module(images), labels)
    expected.backward()
    gradients = [weight.grad for weight in module.parameters()]
    module.zero_grad(set_to_none=True)
    captures = Captures(Workload("wide", module, nn.functional.cross_entropy, (images,), (labels,)))
    graph = captures.graph_at(2)
    budget_bytes = graph.external_bytes + graph.result_bytes * 3 // 4
    with pytest.raises(InfeasibleSchedule):
        build_step(captures, MEASURED, StepRequest(LayrubHybrid(), budget_bytes))
    step = build_step(captures, MEASURED, StepRequest(Joint(), budget_bytes))
    assert any(block.host_location for block in step.plan[0].schedule.graph.blocks)
    assert torch.equal(step(images, labels), expected.detach())
    assert all(torch.equal(a.grad, b) for a, b in zip(module.parameters(), gradients, strict=True))
