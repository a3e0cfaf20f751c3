"""Small cells for tests of sweeps."""

from functools import cache

from hydra import compose

from membench.core.record import Configuration
from membench.sweep.composition import cell_configuration, hydra_composition


def small_cell(**changes: object) -> Configuration:
    """Return a simulated cell that takes milliseconds."""
    return {**_lenet(), **changes}


@cache
def _lenet() -> Configuration:
    with hydra_composition():
        return cell_configuration(compose("config", ["model=lenet", "strategy=eager", "batch_size=4"]))
