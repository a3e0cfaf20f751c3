"""Plans of a rank's step: the schedule's time, collectives included, and regathered weights come ahead."""

import random

import pytest

from membench.core.graph.schedule import Compute
from membench.core.graph.task_graph import Role
from membench.execution.simulation import step_time_s
from membench.planning.checking.validate import validate
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, REPEAT, Problem
from membench.planning.parallel.gathering import gathered_once
from membench.strategies.joint.homes import Homes
from tests.helpers.distributed.sharded import LAYERS, Collectives, sharded_graph

NO_LIMIT = 10**15


@pytest.mark.parametrize("copies_out", [False, True])
@pytest.mark.parametrize("gathering", [0.3, 1.0, 8.0])
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_a_plan_states_the_time_and_the_peak_of_its_schedule(copies_out: bool, gathering: float, share: float) -> None:
    cost, rng = Collectives(gathering, share=share), random.Random(0)
    evaluator = Evaluator(Problem(gathered_once(sharded_graph(copies_out=copies_out)), cost, 1))
    units = evaluator.problem.units
    for options, rounding in (((KEEP, RECOMPUTE), 1e-9), ((KEEP, OFFLOAD, RECOMPUTE, REPEAT), 0.1)):
        for _ in range(4):
            choices = [rng.choice(options) if unit.makers else KEEP for unit in units]
            plan = evaluator.plan(choices, NO_LIMIT)
            schedule = emit("joint", plan, None)
            validate(schedule)
            assert schedule.peak_bytes == plan.peak_bytes
            # copies of gathered weights are planned as if no collective read them
            assert step_time_s(schedule, cost) == pytest.approx(plan.step_s, rel=rounding)


@pytest.mark.parametrize("copies_out", [False, True])
def test_weights_that_are_gathered_again_come_while_the_group_before_them_runs(copies_out: bool) -> None:
    problem = Problem(gathered_once(sharded_graph(copies_out=copies_out)), Collectives(1.0), 1)
    gathered = [unit for unit in problem.units if unit.gather_s]
    assert len(gathered) == LAYERS + 1
    roles = {problem.graph.blocks[block].role for unit in gathered for block in unit.blocks}
    assert roles == {Role.GATHERED}
    evaluator = Evaluator(problem)
    choices = [RECOMPUTE if unit in gathered else KEEP for unit in problem.units]
    schedule = emit("joint", evaluator.plan(choices, NO_LIMIT), None)
    validate(schedule)
    names = [schedule.graph.tasks[i.task].name for i in schedule.instructions if isinstance(i, Compute)]
    for block in range(LAYERS - 1):
        issued = names.index(f"blocks.{block}:all-gather again")
        arrival = "copy out" if copies_out else "arrival"
        assert names.index(f"blocks.{block + 1}:{arrival} again") < issued
        first = next(n for n, name in enumerate(names) if n > issued and f"blocks.{block + 1}." in name)
        assert issued < first < names.index(f"blocks.{block}:{arrival} again")


def test_a_gradient_that_leaves_for_the_host_is_not_waited_for_where_it_is_made() -> None:
    cost = Collectives(8.0, copying=0.01)
    homes = Homes(gathered_once(sharded_graph()), cost)
    problem = Problem(homes.at(len(homes.parts)), cost, 1)
    plan = Evaluator(problem).plan([KEEP] * len(problem.units), NO_LIMIT)
    schedule = emit("joint", plan, None)
    validate(schedule)
    assert step_time_s(schedule, cost) == pytest.approx(plan.step_s, rel=0.01)
    tasks, awaited = schedule.graph.tasks, plan.program.awaited
    reductions = [task.index for task in tasks if "reduce-scatter" in task.name]
    copies_in = [task.index for task in tasks if "copy in gradients" in task.name]
    assert [int(awaited[each]) for each in reductions[:-1]] == copies_in[1:]
