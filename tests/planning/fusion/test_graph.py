"""Fused graphs: the bits of the operators that they consist of, and the stated peak."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from membench.backends import programs
from membench.core.program import program_of
from membench.core.task_graph import RESULT_ROLES, TaskGraph
from membench.planning.fusion.graph import fused
from membench.planning.validate import validate
from membench.strategies.base import find_strategy
from tests.helpers.chains import graph_of
from tests.helpers.checks import check_results_and_peak
from tests.helpers.networks import COST, NETWORKS, reference


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Inductor fail, so that programs run call by call, with the bits of eager PyTorch."""

    def fail(*_: object) -> None:
        raise RuntimeError("there is no compiler")

    monkeypatch.setattr(programs, "compile_graph", fail)
    programs.compiled.cache_clear()
    yield
    programs.compiled.cache_clear()


def names(graph: TaskGraph) -> list[str]:
    """Return each task's operator, or those of its program, joined by ``+``."""
    found = []
    for task in graph.tasks:
        assert task.call is not None
        program = program_of(task.call)
        calls = program.calls if program else (task.call,)
        found.append("+".join(call.operator.split(".")[1] for call in calls))
    return found


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_fused_step_has_the_bits_of_its_operators_and_the_stated_peak(name: str) -> None:
    case = reference(name)
    graph = fused(case.captured.graph)
    assert len(graph.tasks) < len(case.captured.graph.tasks)
    schedule = find_strategy("eager")().schedule(COST.annotate(graph), COST, None)
    validate(schedule)
    check_results_and_peak(case, schedule)
