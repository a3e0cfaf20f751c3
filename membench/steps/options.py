"""StepOptions: what is chosen of a step besides its network and the device on which it runs."""

from dataclasses import dataclass

from membench.core.kernels import Kernels
from membench.core.optimizer import WeightUpdate
from membench.planning.parallel.exchange import Exchange
from membench.strategies.base import Strategy


@dataclass(frozen=True)
class StepOptions:
    """The options of `membench.compile`, converted.

    Attributes:
        strategy: the memory-saving method.
        budget_bytes: the most device memory that the step may hold; None: any number of bytes, on a simulated device what it has.
        micro_batch: samples at a time, ``"fitted"``, ``"fastest"``, or None for what the strategy chooses.
        exchange: when gradients are averaged over processes or simulated devices; None: processes do not exchange.
        optimizer: updates the weights in the step; None: the step ends with the gradients.
        kernels: what computes the step; None: PyTorch's operators, in a simulation also what the module and the loss were given to.
        cuda_graph: whether the step is replayed as one CUDA graph.
    """

    strategy: Strategy
    budget_bytes: int | None = None
    micro_batch: int | str | None = None
    exchange: Exchange | None = None
    optimizer: WeightUpdate | None = None
    kernels: Kernels | None = None
    cuda_graph: bool = False
