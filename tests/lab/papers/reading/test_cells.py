"""Configurations of cells: keys that came later leave the hashes of earlier records as they are."""

from hydra import compose

from membench.core import configuration
from membench.core.record import configuration_hash
from membench.sweep.composition import CELL_KEYS, cell_configuration, hydra_composition
from tests.helpers.sweep.cells import small_cell


def test_a_cell_without_an_optimizer_has_no_such_key() -> None:
    with hydra_composition():
        plain = cell_configuration(compose("config"))
        updating = cell_configuration(compose("config", ["optimizer=adamw"]))
    assert set(plain) == set(CELL_KEYS)
    assert updating == plain | {"optimizer": updating["optimizer"]}
    assert updating["optimizer"]["name"] == "adamw"


def test_a_machine_is_of_simulated_cells_where_it_is_chosen() -> None:
    with hydra_composition():
        simulated = cell_configuration(compose("config", ["machine=desktop"]))
        run = cell_configuration(compose("config", ["machine=desktop", "backend=cpu"]))
    assert simulated["machine"] == configuration.read("machine", "desktop")
    assert set(simulated) == {*CELL_KEYS, "machine"}
    assert set(run) == set(CELL_KEYS)


def test_a_small_cell_keeps_the_hash_that_records_have() -> None:
    assert configuration_hash(small_cell()) == "90c57111223789ce"
