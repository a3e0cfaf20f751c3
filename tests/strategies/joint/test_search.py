from unittest.mock import patch

from membench.planning.choices.evaluation import Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, Problem
from membench.strategies.joint.search import Search
from tests.helpers.planning.chains import chain_of_convolutions
from tests.helpers.planning.graphs import COST

EVALUATIONS = 300


def test_annealing_tries_as_many_plans_as_it_may_and_evaluates_none_twice() -> None:
    evaluator = Evaluator(Problem(chain_of_convolutions(4, normalized=True), COST, 1))
    units = len(evaluator.problem.units)
    budget_bytes = (evaluator.needed_bytes([OFFLOAD] * units)[0] + evaluator.needed_bytes([KEEP] * units)[0]) // 2
    search = Search(evaluator, budget_bytes, evaluations=EVALUATIONS, enough_s=0.0)
    search.start([[OFFLOAD] * units])
    first_s = search.step_s
    with patch.object(evaluator, "plan", wraps=evaluator.plan) as plan:
        search.anneal()
    evaluated = [tuple(call.args[0]) for call in plan.call_args_list]
    assert len(evaluated) == len(set(evaluated)) < EVALUATIONS - 1
    assert (search.tried, search.left) == (EVALUATIONS, 0)
    assert search.best is not None and search.best.step_s == search.step_s < first_s
    again = evaluator.plan(search.best.choices, budget_bytes)
    assert again.step_s == search.step_s and again.peak_bytes <= budget_bytes
