"""Evaluated plans: the time and the peak that they state are those of the schedule that they become."""

import random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torchvision.models import DenseNet, ResNet
from torchvision.models.resnet import BasicBlock

from membench.cost.roofline import RooflineCost
from membench.execution.simulation import step_time_s
from membench.planning.checking.validate import validate
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, REPEAT, Problem
from membench.planning.rewrites.update import add_update
from membench.strategies.joint.homes import Homes
from tests.helpers.planning.chains import chain_of_convolutions, graph_of
from tests.helpers.planning.graphs import ANY, COST
from tests.helpers.steps.updates import captured

NO_LIMIT = 10**15


class WithDelays(RooflineCost):
    """Copies share the memory with kernels, as on a CPU."""

    def copy_delay_s(self, size_bytes: int) -> float:
        return self.offload_time_s(size_bytes) / 3


DELAYING = WithDelays(*ANY)


@pytest.fixture(scope="module")
def evaluators() -> dict[str, Evaluator]:
    with torch.device("meta"):
        networks = {
            "resnet": ResNet(BasicBlock, [1, 2, 1, 1], 10),
            "densenet": DenseNet(growth_rate=8, block_config=(2, 3, 2), num_init_features=16, num_classes=10),
        }
    graphs = {name: graph_of(network, 3, 64) for name, network in networks.items()}
    graphs["chain"] = chain_of_convolutions(8, normalized=True)
    homes = Homes(add_update(graphs["resnet"], captured("adamw")), COST)
    assert len(homes.parts) > 4
    graphs |= {"weights at home": homes.at(len(homes.parts)), "half of them": homes.at(len(homes.parts) // 2)}
    found = {name: Evaluator(Problem(graph, COST, 1)) for name, graph in graphs.items()}
    return found | {"with delays": Evaluator(Problem(graphs["resnet"], DELAYING, 1))}


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["chain", "densenet", "resnet", "weights at home", "half of them", "with delays"]),
    seed=st.integers(0, 10_000),
    room=st.floats(0, 1),
)
def test_a_plan_states_the_time_and_the_peak_of_its_schedule(
    evaluators: dict[str, Evaluator], name: str, seed: int, room: float
) -> None:
    evaluator = evaluators[name]
    rng = random.Random(seed)
    options = [
        (KEEP, OFFLOAD, RECOMPUTE, REPEAT) if unit.makers else (KEEP, OFFLOAD) for unit in evaluator.problem.units
    ]
    weights = [rng.random() for _ in range(4)]
    choices = [rng.choices(each, weights[: len(each)])[0] for each in options]
    assume(evaluator.plan(choices, NO_LIMIT).step_s < float("inf"))  # otherwise it repeats too much
    least_bytes = evaluator.needed_bytes(choices)[0]
    most_bytes = max(least_bytes, evaluator.needed_bytes([KEEP] * len(choices))[0])
    budget_bytes = int(least_bytes + room * (most_bytes - least_bytes))
    plan = evaluator.plan(choices, budget_bytes)
    schedule = emit("joint", plan, budget_bytes)
    validate(schedule, budget_bytes=budget_bytes)
    assert schedule.peak_bytes == plan.peak_bytes <= budget_bytes
    cost = DELAYING if name == "with delays" else COST
    assert step_time_s(schedule, cost) == pytest.approx(plan.step_s, rel=1e-9)


@pytest.mark.slow
def test_a_given_order_is_planned_as_the_choices_that_it_follows_from(evaluators: dict[str, Evaluator]) -> None:
    for evaluator in evaluators.values():
        choices = [RECOMPUTE if unit.makers else OFFLOAD for unit in evaluator.problem.units]
        budget_bytes = evaluator.needed_bytes(choices)[0] * 5 // 4
        plan = evaluator.plan(choices, budget_bytes)
        given = evaluator.plan_of(evaluator.program_of(plan.order()), choices, budget_bytes)
        assert (given.step_s, given.peak_bytes) == (plan.step_s, plan.peak_bytes)
        assert given.order() == plan.order()


def test_less_than_the_needed_bytes_is_infeasible(evaluators: dict[str, Evaluator]) -> None:
    for evaluator in evaluators.values():
        choices = [OFFLOAD] * len(evaluator.problem.units)
        needed_bytes, operation = evaluator.needed_bytes(choices)
        assert 0 <= operation < len(evaluator.problem.operations)
        assert evaluator.plan(choices, needed_bytes).step_s < float("inf")
        assert evaluator.plan(choices, needed_bytes - 1).step_s == float("inf")
