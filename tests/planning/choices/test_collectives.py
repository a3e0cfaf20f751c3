"""Plans of a rank's step: their time is that of the schedule, collectives included, and weights that are gathered again come ahead."""

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from membench.core.schedule import Compute
from membench.core.task_graph import Role
from membench.execution.simulation import step_time_s
from membench.planning.choices.emit import emit
from membench.planning.choices.evaluation import Evaluator
from membench.planning.choices.problem import KEEP, OFFLOAD, RECOMPUTE, REPEAT, Problem
from membench.planning.gathering import gathered_once
from membench.planning.validate import validate
from tests.helpers.sharded import LAYERS, Collectives, sharded_graph

NO_LIMIT = 10**15


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    copies_out=st.booleans(),
    gathering=st.floats(0.1, 10),
    share=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 10_000),
    room=st.floats(0, 1),
)
def test_a_plan_states_the_time_and_the_peak_of_its_schedule(
    copies_out: bool, gathering: float, share: float, seed: int, room: float
) -> None:
    cost, rng = Collectives(gathering, share=share), random.Random(seed)
    evaluator = Evaluator(Problem(gathered_once(sharded_graph(copies_out=copies_out)), cost, 1))
    units = evaluator.problem.units
    options = [(KEEP, OFFLOAD, RECOMPUTE, REPEAT) if unit.makers else (KEEP, OFFLOAD) for unit in units]
    weights = [rng.random() for _ in range(4)]
    choices = [rng.choices(each, weights[: len(each)])[0] for each in options]
    assume(evaluator.plan(choices, NO_LIMIT).step_s < float("inf"))
    least_bytes = evaluator.needed_bytes(choices)[0]
    most_bytes = max(least_bytes, evaluator.needed_bytes([KEEP] * len(choices))[0])
    budget_bytes = int(least_bytes + room * (most_bytes - least_bytes))
    plan = evaluator.plan(choices, budget_bytes)
    schedule = emit("joint", plan, budget_bytes)
    validate(schedule, budget_bytes=budget_bytes)
    assert schedule.peak_bytes == plan.peak_bytes <= budget_bytes
    assert step_time_s(schedule, cost) == pytest.approx(plan.step_s, rel=1e-9)


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
