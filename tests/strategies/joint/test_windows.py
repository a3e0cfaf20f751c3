"""Windows of collectives: bounds that hold for schedules of a rank's step, and that slow collectives raise."""

import random

import pytest

from membench.execution.simulation import step_time_s
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, Problem
from membench.planning.parallel.gathering import gathered_once
from membench.steps.plan import plan
from membench.strategies.base import find_strategy
from membench.strategies.joint.bound import relax
from membench.strategies.joint.strategy import Joint
from membench.strategies.joint.windows import least_with_collectives_s
from membench.strategies.pytorch import PyTorch
from tests.helpers.distributed.sharded import Collectives, sharded_graph


@pytest.mark.parametrize("gathering", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_the_bound_holds_for_schedules_at_random(gathering: float, share: float) -> None:
    cost, rng = Collectives(gathering, share=share), random.Random(0)
    problem = Problem(gathered_once(sharded_graph()), cost, 1)
    evaluator = Evaluator(problem)
    for _ in range(6):
        odds = [rng.random() for _ in range(3)]
        choices = [rng.choices((KEEP, OFFLOAD, RECOMPUTE), odds)[0] if unit.makers else KEEP for unit in problem.units]
        budget_bytes = evaluator.needed_bytes(choices)[0]
        schedule = emit("joint", evaluator.plan(choices, budget_bytes), budget_bytes)
        bound = relax(problem, budget_bytes)
        assert bound is not None
        assert least_with_collectives_s(problem) <= step_time_s(schedule, cost) * (1 + 1e-9)
        assert problem.compute_s <= bound.step_s <= step_time_s(schedule, cost) * (1 + 1e-6)


@pytest.mark.parametrize("strategy", ["pytorch", "eager", "memonger"])
def test_the_bound_holds_for_methods_that_gather_for_each_pass(strategy: str) -> None:
    graph = sharded_graph()
    for gathering in (0.3, 8.0):
        cost = Collectives(gathering, share=0.1)
        schedule = plan(graph, find_strategy(strategy)(), cost, None)
        bound = relax(Problem(gathered_once(graph), cost, 1), schedule.peak_bytes)
        assert bound is not None
        assert bound.step_s <= step_time_s(schedule, cost) * (1 + 1e-6)


def test_slow_collectives_raise_the_bound_to_the_time_of_all_of_them() -> None:
    problem = Problem(gathered_once(sharded_graph()), Collectives(20.0), 1)
    collectives_s = sum(problem.collective_s[: len(problem.graph.tasks)])
    assert collectives_s > 2 * problem.compute_s
    bound = relax(problem, 10**9)
    assert bound is not None
    assert least_with_collectives_s(problem) > collectives_s
    assert bound.step_s > collectives_s


@pytest.mark.slow
def test_joint_is_never_slower_than_the_program_and_gathers_less_where_it_has_more_memory() -> None:
    graph, cost = sharded_graph(), Collectives(8.0, copying=1000.0, share=0.1)
    given_back, stay = (plan(each, PyTorch(), cost, None) for each in (graph, gathered_once(graph)))
    gathers = []
    for program in (given_back, stay):
        joint = plan(graph, Joint(), cost, program.peak_bytes)
        assert step_time_s(joint, cost) <= step_time_s(program, cost)
        assert dict(joint.decisions)["lower_bound_s"] <= step_time_s(joint, cost) * (1 + 1e-9)
        gathers.append(sum("all-gather" in task.name for task in joint.graph.tasks if task.collective))
    assert gathers[0] > gathers[1]
