"""Strategies by name."""

from dataclasses import replace

import pytest

from membench.core.errors import UnsupportedStrategy
from membench.core.graph.task_graph import Mode
from membench.strategies import eager
from membench.strategies.base import find_strategy, strategies
from tests.helpers.planning.chains import chain_of_sizes


class Twin(eager.Eager):
    """It has forgotten to name itself."""


def test_a_name_belongs_to_one_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert strategies()["eager"] is find_strategy("eager") is eager.Eager
    monkeypatch.setattr(eager, "Twin", Twin, raising=False)
    with pytest.raises(UnsupportedStrategy, match=r"test_base\.Twin needs a name of its own, not 'eager'"):
        find_strategy("eager")


def test_each_mode_has_the_strategies_that_name_it() -> None:
    training, inference = strategies(Mode.TRAINING), strategies(Mode.INFERENCE)
    assert {"eager", "mmcnn"} <= inference.keys() and {"eager", "layrub_hybrid"} <= training.keys()
    assert "mmcnn" not in training and "layrub_hybrid" not in inference


def test_what_runs_the_program_as_written_schedules_its_graph_and_others_the_flexible_one() -> None:
    program = replace(chain_of_sizes([1, 2]), is_plain=True)
    graph = replace(chain_of_sizes([2, 3]), plain=program)
    for name, strategy in strategies().items():
        assert strategy().scheduled(graph) is (program if name == "pytorch" else graph)
        assert strategy().scheduled(program) is program


def test_a_change_is_made_to_both_graphs_of_a_step() -> None:
    graph = chain_of_sizes([1])
    both = replace(graph, plain=replace(graph, is_plain=True))
    changed = both.map(lambda each: replace(each, name=f"{each.is_plain}"))
    assert changed.plain is not None and (changed.name, changed.plain.name) == ("False", "True")
    assert graph.map(lambda each: each) == graph
