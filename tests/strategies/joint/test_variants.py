"""No plan of any variant, and no other method with the same bits, is faster than the lower bound."""

import random
from dataclasses import replace
from functools import cache
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from membench.core.configuration import load
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.cost.roofline import RooflineCost
from membench.execution.simulation import step_time_s
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, REPEAT
from membench.steps.plan import plan
from membench.strategies.base import find_strategy
from membench.strategies.joint.others import METHODS
from membench.strategies.joint.planner import Planner
from membench.strategies.joint.strategy import Joint
from membench.strategies.joint.variants import Variant, Variants, held_bytes
from tests.helpers.networks.contract import COST as MEASURED
from tests.helpers.networks.contract import reference
from tests.helpers.planning.chains import graph_of
from tests.helpers.steps.checks import check_results_and_peak

FRAMEWORKS = ("modnn", "pytorch", "torch7")
CHOICES = (KEEP, OFFLOAD, RECOMPUTE, REPEAT)


class Residual(nn.Module):
    """A convolution with batch norm, added to its input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
        self.relu = nn.ReLU(True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.relu(self.layers(images) + images)


def network(layers: list[str]) -> nn.Sequential:
    found: list[nn.Module] = [nn.Conv2d(3, 16, 5, padding=2)]
    for layer in layers:
        found.append(
            {
                "convolution": lambda: nn.Conv2d(16, 16, 3, padding=1),
                "relu": nn.ReLU,
                "in place": lambda: nn.Sequential(nn.Conv2d(16, 16, 1), nn.ReLU(True)),
                "pool": lambda: nn.MaxPool2d(2, padding=1),
                "residual": lambda: Residual(16),
            }[layer]()
        )
    return nn.Sequential(*found, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


LAYERS = st.lists(st.sampled_from(["convolution", "in place", "pool", "relu", "residual"]), min_size=2, max_size=5)


@cache
def lowered(layers: tuple[str, ...], framework: str) -> tuple[TaskGraph, CostModel]:
    chosen = load("framework", framework)
    cost = RooflineCost(load("device", "k40m"), chosen.efficiency)
    with torch.device("meta"):
        graph = graph_of(network(list(layers)), 3, 64)
    return cost.annotate(chosen.lower(graph)), cost


class SlowLink(RooflineCost):
    """The same device with a link of a megabyte per second."""

    def __init__(self, cost: CostModel) -> None:
        self.__dict__.update(cost.__dict__)

    def offload_time_s(self, size_bytes: int) -> float:
        return size_bytes / 1e6

    prefetch_time_s = offload_time_s


def any_variant(variants: Variants, rng: random.Random) -> Variant:
    def some(items: frozenset[int]) -> frozenset[int]:
        return frozenset(item for item in sorted(items) if rng.random() < 0.5)

    algorithms = tuple((task, rng.randrange(len(options))) for task, options in variants.options.items())
    most = variants.smallest
    is_joined = not variants.options and rng.random() < 0.5
    return Variant(is_joined, some(most.masked), some(most.narrowed), algorithms)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, derandomize=True)
@given(layers=LAYERS, framework=st.sampled_from(FRAMEWORKS), seed=st.integers(0, 10_000), room=st.floats(0, 1))
def test_no_plan_of_a_variant_is_faster_than_the_bound(
    layers: list[str], framework: str, seed: int, room: float
) -> None:
    graph, cost = lowered(tuple(layers), framework)
    planner, variants, rng = Planner(graph, cost), Variants(graph, cost), random.Random(seed)
    for _ in range(10):
        evaluator = Evaluator(variants.problem(any_variant(variants, rng)))
        units = evaluator.problem.units
        weights = [rng.random() for _ in CHOICES]
        choices = [rng.choices(CHOICES if u.makers else CHOICES[:2], weights[: 4 if u.makers else 2])[0] for u in units]
        least_bytes = evaluator.needed_bytes(choices)[0]
        most_bytes = evaluator.needed_bytes([KEEP] * len(units))[0]
        budget_bytes = int(least_bytes + room * max(0, most_bytes - least_bytes))
        plan = evaluator.plan(choices, budget_bytes)
        if plan.step_s < inf:
            step_s = step_time_s(emit("plan", plan, None), cost)
            assert planner.least_s(budget_bytes) <= step_s * (1 + 1e-9)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(layers=LAYERS, framework=st.sampled_from(FRAMEWORKS), seed=st.integers(0, 10_000))
def test_smaller_variants_differ_in_what_they_say_and_need_no_more(
    layers: list[str], framework: str, seed: int
) -> None:
    graph, cost = lowered(tuple(layers), framework)
    variants = Variants(graph, cost)
    variant = any_variant(variants, random.Random(seed))
    apart, encoded = variants.smaller(variant)
    assert apart == replace(variant, is_joined=False)
    assert encoded == replace(apart, masked=variants.smallest.masked, narrowed=variants.smallest.narrowed)
    most_bytes, apart_bytes = (max(held_bytes(variants.problem(each).graph)) for each in (variant, apart))
    assert apart_bytes <= most_bytes


@pytest.mark.parametrize("name", ["alexnet", "squeezenet"])
def test_plans_of_variants_give_the_same_bits_and_hold_what_they_state(name: str) -> None:
    case, rng = reference(name), random.Random(0)
    graph = MEASURED.annotate(case.captured.graph)
    variants = Variants(graph, MEASURED)
    for variant in (variants.smallest, any_variant(variants, rng)):
        assert variant.masked and variant.narrowed
        evaluator = Evaluator(variants.problem(variant))
        choices = [rng.choice(CHOICES[: 3 if unit.makers else 2]) for unit in evaluator.problem.units]
        check_results_and_peak(case, emit("joint", evaluator.plan(choices, 10**15), None))


@pytest.mark.slow
def test_encodings_are_taken_where_the_link_is_slow_and_left_where_memory_suffices() -> None:
    layers = ["in place", "pool", "in place", "pool", "convolution"]
    graph, cost = lowered(tuple(layers), "pytorch")
    most_bytes = plan(graph, find_strategy("eager")(), cost, None).peak_bytes
    graphs = [plan(graph, Joint(), SlowLink(cost), int(share * most_bytes)).graph for share in (1.0, 0.75)]
    encoded = [[b.name for b in each.blocks if b.name.endswith((":mask", "narrowed"))] for each in graphs]
    assert not encoded[0] and encoded[1]


@pytest.mark.slow
@settings(max_examples=10, deadline=None, derandomize=True)
@given(layers=LAYERS, framework=st.sampled_from(FRAMEWORKS), share=st.floats(0.3, 1))
def test_no_other_method_is_faster_than_the_bound_or_than_joint(
    layers: list[str], framework: str, share: float
) -> None:
    graph, cost = lowered(tuple(layers), framework)
    budget_bytes = int(share * plan(graph, find_strategy("eager")(), cost, None).peak_bytes)
    planner = Planner(graph, cost)
    times_s = []
    for other in METHODS:
        try:
            times_s.append(step_time_s(plan(graph, other, cost, budget_bytes), cost))
        except MembenchError:
            continue
    if times_s:
        schedule = plan(graph, Joint(), cost, budget_bytes)
        assert planner.least_s(budget_bytes) <= min(times_s) * (1 + 1e-9)
        assert dict(schedule.decisions)["lower_bound_s"] <= step_time_s(schedule, cost) * (1 + 1e-9)
        assert step_time_s(schedule, cost) <= min(times_s) * (1 + 1e-9)


def test_the_bound_of_a_step_of_a_millisecond_is_exact_where_everything_fits_to_the_byte() -> None:
    graph, cost = lowered(("convolution", "relu", "relu"), "modnn")
    variants = Variants(graph, cost)
    evaluator = Evaluator(variants.problem(variants.fastest))
    choices = [OFFLOAD] * len(evaluator.problem.units)
    budget_bytes = evaluator.needed_bytes(choices)[0]
    step_s = evaluator.plan(choices, budget_bytes).step_s
    assert step_s < 1e-3
    assert Planner(graph, cost).least_s(budget_bytes) == pytest.approx(step_s, rel=1e-9)
