"""Plans as schedules: each is legal, whichever of the updates run on the host."""

from dataclasses import replace

import torch

from membench.capture.capture import capture
from membench.capture.update.captured_update import CapturedUpdate
from membench.core.graph.task_graph import Role
from membench.core.step.optimizer import Gradients, WeightUpdate
from membench.planning.checking.validate import validate
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import NO_LIMIT, Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, Problem
from membench.planning.parallel.gathering import gathered_once
from membench.planning.rewrites.update import add_update
from membench.strategies.joint.homes import Homes
from tests.helpers.distributed.sharded import Collectives, sharded_graph
from tests.helpers.networks.blocks import blocks_workload
from tests.helpers.planning.costs import UnitCost


def test_sums_of_gradients_leave_for_the_updates_on_the_host() -> None:
    captured = capture(replace(blocks_workload(2), accumulates=True)).graph
    optimizer = WeightUpdate(torch.optim.AdamW, gradients=Gradients.FREED)
    graph = add_update(captured, CapturedUpdate(optimizer))
    problem = Problem(Homes(graph, UnitCost()).at(len(Homes(graph, UnitCost()).parts)), UnitCost(), 1)
    for choice in (KEEP, OFFLOAD):
        schedule = emit("joint", Evaluator(problem).plan([choice] * len(problem.units), NO_LIMIT), None)
        validate(schedule)
        read = {block for task in schedule.graph.tasks if task.on_host for block in task.reads}
        assert any(schedule.graph.blocks[block].role is Role.ACCUMULATED for block in read)


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
