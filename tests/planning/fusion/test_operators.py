"""Operators that are fused: rotations of pairs of features, whose parts are stacked or concatenated."""

from pathlib import Path

import pytest

from membench.capture.capture import capture
from membench.conformance.results import reference_of, run_step
from membench.conformance.steps import check_exact
from membench.core.graph.fused_calls import fused_calls_of
from membench.core.graph.task_graph import Phase, Task, TaskGraph
from membench.planning.checking.validate import validate
from membench.planning.fusion.graph import fused
from membench.planning.fusion.operators import is_cheap, is_fusible, is_run_again
from membench.strategies.base import find_strategy
from tests.helpers.kernels.compiled_functions import cached_in, without_compiler
from tests.helpers.networks.rotations import rotations
from tests.helpers.planning.costs import UnitCost
from tests.helpers.steps.checks import step_of

JOINS = {True: "cat", False: "stack"}
PARTS = {True: "slice_backward", False: "select_backward"}
"""The operators that make one tensor of two parts, forward and backward, by whether a pair is of halves."""
ROUNDING = 1e-5


def of_task(task: Task) -> list[str]:
    """Return the operators of a task."""
    program = fused_calls_of(task.call)
    calls = program.calls if program else (task.call,)
    return [call.operator.split(".")[1] for call in calls if call is not None]


def loops(graph: TaskGraph, phase: Phase) -> list[list[str]]:
    """Return the operators of each task of a phase that is not a product."""
    tasks = (of_task(task) for task in graph.tasks if task.phase is phase)
    return [names for names in tasks if names != ["mm"]]


@pytest.mark.parametrize("of_halves", JOINS)
def test_a_rotation_is_one_task_on_a_gpu_forward_and_backward(of_halves: bool) -> None:
    graph = fused(capture(rotations(of_halves=of_halves)).graph)
    [forward] = [names for names in loops(graph, Phase.FORWARD) if "repeat" not in names]
    assert forward.count(JOINS[of_halves]) == 1 and forward.count("mul") == (2 if of_halves else 4)
    [backward] = [names for names in loops(graph, Phase.BACKWARD) if PARTS[of_halves] in names]
    assert backward.count(PARTS[of_halves]) == (2 if of_halves else 4)


@pytest.mark.parametrize("of_halves", JOINS)
def test_on_the_cpu_what_joins_parts_is_a_task_of_its_own_and_what_parts_gradients_go_into_is_not(
    of_halves: bool,
) -> None:
    graph = fused(capture(rotations(of_halves=of_halves)).graph, on_cpu=True)
    assert [JOINS[of_halves]] in loops(graph, Phase.FORWARD)
    assert not any(names == [PARTS[of_halves]] for names in loops(graph, Phase.BACKWARD))


@pytest.mark.parametrize("of_halves", JOINS)
def test_what_joins_parts_runs_again_in_the_backward_pass_of_strategies_alone(of_halves: bool) -> None:
    graph = capture(rotations(of_halves=of_halves)).graph
    [join] = [task for task in graph.tasks if of_task(task) == [JOINS[of_halves]]]
    assert is_fusible(join, graph) and is_cheap(join) and not is_run_again(join)


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("of_halves", JOINS)
def test_fused_rotations_have_the_bits_of_their_operators(of_halves: bool, on_cpu: bool, tmp_path: Path) -> None:
    case = reference_of(rotations(of_halves=of_halves))
    with without_compiler(tmp_path):
        graph = fused(case.captured.graph, on_cpu=on_cpu)
        assert len(graph.tasks) < len(case.captured.graph.tasks)
        schedule = find_strategy("eager")().schedule(graph, UnitCost(), None)
        validate(schedule)
        with step_of(case, schedule, chaos=None) as step:
            check_exact(case, step)


@pytest.mark.exhaustive
@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("of_halves", JOINS)
def test_compiled_rotations_are_close_to_eager_pytorch(of_halves: bool, on_cpu: bool, tmp_path: Path) -> None:
    case = reference_of(rotations(of_halves=of_halves))
    with cached_in(tmp_path):
        graph = fused(case.captured.graph, on_cpu=on_cpu)
        schedule = find_strategy("eager")().schedule(graph, UnitCost(), None)
        with step_of(case, schedule, chaos=None) as step:
            results = run_step(case.work, lambda: step(case.work.inputs, case.work.targets), case.buffers)
    assert float((results.loss - case.results.loss).abs()) <= ROUNDING * float(case.results.loss)
    assert case.results.gradient_error(results) <= ROUNDING
