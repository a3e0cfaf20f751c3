"""Plans as schedules: each is legal, whichever of the updates run on the host."""

from membench.planning.checking.validate import validate
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import Evaluator
from membench.planning.choices.problem import KEEP, Problem
from membench.planning.parallel.gathering import gathered_once
from membench.strategies.joint.homes import Homes
from tests.helpers.distributed.sharded import Collectives, sharded_graph


def test_shards_of_gradients_may_have_updates_on_the_host_and_on_the_device() -> None:
    """A buffer of shards has the gradients of several weights, so that its last use may be on either."""
    cost = Collectives(1.0)
    graph = gathered_once(sharded_graph())
    homes = Homes(cost.annotate(graph), cost)
    readers = [{task.index for task in graph.tasks if block.index in task.reads} for block in graph.blocks]
    numbers = range(len(homes.parts) + 1)
    mixed = 0
    for number in numbers:
        on_host = {task.index for task in homes.at(number).tasks if task.on_host}
        mixed += any(each & on_host and max(each) not in on_host for each in readers)
        evaluator = Evaluator(Problem(homes.at(number), cost, 1))
        choices = [KEEP] * len(evaluator.problem.units)
        budget_bytes = evaluator.needed_bytes(choices)[0]
        schedule = emit("joint", evaluator.plan(choices, budget_bytes), budget_bytes)
        validate(schedule, budget_bytes=budget_bytes)
        assert bool(on_host) == any(task.on_host for task in schedule.graph.tasks)
    assert mixed
