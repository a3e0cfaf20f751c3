"""Densities that a cell asks to have measured."""

from typing import Any

import pytest
from hydra import compose

from membench.core.record import Outcome, Record
from membench.sweep.cells.run import run_cell
from membench.sweep.composition import cell_configuration, hydra_composition


def record(*words: str) -> Record:
    defaults = ["model=digits_alexnet", "batch_size=8", "framework=pytorch", "strategy=epmc"]
    with hydra_composition():
        return run_cell(cell_configuration(compose("config", [*defaults, *words])))


def planned(found: Record) -> Any:
    assert found.outcome is Outcome.OK, found.reason
    return found.metrics["planned_density"]


def test_a_simulated_cell_plans_with_densities_measured_on_the_model_at_the_seed() -> None:
    measured = record("strategy.density=measured")
    assert 0.2 < planned(measured) < 0.9
    assert measured.configuration["strategy"]["density"] == "measured"
    assert planned(record("strategy.density=measured")) == planned(measured)
    assert planned(record("strategy.density=measured", "seed=1")) != planned(measured)
    assert planned(record("strategy.density=0.25")) == pytest.approx(0.25, abs=0.01)


@pytest.mark.slow
def test_a_measured_cell_has_room_for_what_dropout_leaves() -> None:
    measured = record("strategy.density=measured", "backend=cpu")
    assert planned(measured) < 0.9
    assert measured.metrics["peak_memory_bytes"] == measured.metrics["required_memory_bytes"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["strategy.density=measured", "framework=caffe"], "choose framework=pytorch"),
        (["strategy.density=measured", "model=alexnet_deploy"], "inference does not keep activations"),
        (["strategy.density=1.5"], "from 0 to 1"),
    ],
)
def test_what_cannot_be_planned_with_is_refused(words: list[str], reason: str) -> None:
    found = record(*words)
    assert found.outcome is Outcome.UNSUPPORTED
    assert reason in found.reason
