"""Method: the strategy of a cell, or the baseline in its place, with its options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from membench.core.configuration import instantiate
from membench.core.errors import UnsupportedStrategy
from membench.core.step.workload import Workload
from membench.planning.algorithms import Preference
from membench.steps.densities import likely_densities
from membench.strategies.base import Strategy
from membench.strategies.compression import MEASURED
from membench.sweep.cells import baselines
from membench.sweep.cells.baselines import Baseline


@dataclass(frozen=True)
class Method:
    """A configured strategy or baseline.

    Attributes:
        options: its class (``_target_``) and arguments, as a file of ``conf/strategy`` or ``conf/baseline`` has them.
    """

    options: Mapping[str, Any]

    @property
    def baseline(self) -> Baseline | None:
        """The baseline, if the class is one of `membench.sweep.cells.baselines`."""
        is_baseline = self.options["_target_"].rpartition(".")[0] == baselines.__name__
        return instantiate(dict(self.options), Baseline) if is_baseline else None

    @property
    def measures_density(self) -> bool:
        """Whether the strategy's density is to be measured (``strategy.density=measured``)."""
        return bool(self.options.get("density") == MEASURED)

    @property
    def prefers_memory(self) -> bool:
        """Whether the strategy takes the convolution algorithms that need the least memory, vDNN's (m)."""
        return bool(self.options.get("algorithms") == Preference.MEMORY)

    def strategy(self, **changed: Any) -> Strategy:
        """Return the strategy, with some options changed."""
        made: Strategy = instantiate({**self.options, **changed}, Strategy)
        return made

    def strategy_for(self, workload: Workload, device: torch.device) -> Strategy:
        """Return the strategy; if it asks for that, with each activation's density in one step of a workload.

        Args:
            workload: with real weights and data.
            device: where that step runs.

        Raises:
            UnsupportedStrategy: densities are to be measured of a step of inference.
        """
        if not self.measures_density:
            return self.strategy()
        if workload.loss is None:
            raise UnsupportedStrategy("inference does not keep activations, whose density could be measured")
        return self.strategy(density=likely_densities(workload.to(device)))
