"""A cell whose density is to be measured: ``strategy.density=measured`` in place of a number."""

from typing import Any

import torch

from membench.core.configuration import instantiate
from membench.core.errors import UnsupportedStrategy
from membench.core.record import Configuration
from membench.core.workload import Workload
from membench.steps.densities import likely_densities
from membench.strategies.compression import MEASURED


def with_density(configuration: Configuration, workload: Workload, device: torch.device) -> Any:
    """Return a cell's strategy; if it asks for that, with the density of each map in one step of a workload.

    Args:
        configuration: of the cell; its record keeps the word ``measured``, or the number that was given.
        workload: with real weights and data.
        device: where the step runs that tells; the maps are those of its kernels.
    """
    strategy = configuration["strategy"]
    if not is_measured(configuration):
        return instantiate(strategy)
    if workload.loss is None:
        raise UnsupportedStrategy("inference keeps no maps whose density could be measured")
    return instantiate({**strategy, "density": likely_densities(workload.to(device))})


def is_measured(configuration: Configuration) -> bool:
    return bool(configuration["strategy"].get("density") == MEASURED)
