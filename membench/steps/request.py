"""What is asked of a step and what it runs on, as converted from the keywords by which users ask."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from membench.core.checks import choice
from membench.core.hardware.cluster import SINGLE_DEVICE, Cluster
from membench.core.hardware.device import as_device
from membench.core.hardware.machine import Machine
from membench.core.step.kernels import Kernels
from membench.core.step.optimizer import WeightUpdate
from membench.planning.parallel.exchange import Exchange
from membench.steps.arguments import as_bytes, as_cluster, as_machine, as_strategy, as_update, in_process
from membench.strategies.base import Strategy


@dataclass(frozen=True)
class StepRequest:
    """How a workload is to be computed, converted.

    Attributes:
        strategy: the memory-saving method.
        budget_bytes: the most device memory that the step may hold; None: any number of bytes, on a simulated device
            what it has.
        micro_batch: samples at a time, ``"fitted"``, ``"fastest"``, or None for what the strategy chooses.
        exchange: when gradients are averaged over processes or simulated devices; None: processes do not exchange.
        optimizer: updates the weights in the step; None: the step ends with the gradients.
        kernels: what computes the step; None: PyTorch's operators, in a simulation also what the module and the loss
            were given to.
        cuda_graph: whether the step is replayed as one CUDA graph.
    """

    strategy: Strategy
    budget_bytes: int | None = None
    micro_batch: int | str | None = None
    exchange: Exchange | None = None
    optimizer: WeightUpdate | None = None
    kernels: Kernels | None = None
    cuda_graph: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], strategy: str) -> Self:
        """Return what options ask.

        Args:
            options: `StepKeywords`, and those of `CompileKeywords`.
            strategy: the one of a step whose options name none.

        Raises:
            MembenchError: a value is none of those allowed; see also `membench.steps.arguments`.
        """
        exchange, kernels = options.get("exchange"), options.get("kernels")
        return cls(
            as_strategy(options.get("strategy", strategy)),
            as_bytes(options.get("budget")),
            options.get("micro_batch"),
            None if exchange is None else choice(Exchange, "exchange", exchange),
            as_update(options.get("optimizer")),
            None if kernels is None else choice(Kernels, "kernels", kernels),
            options.get("cuda_graph", False),
        )


@dataclass(frozen=True)
class Hardware:
    """What a step runs on, converted.

    Attributes:
        cluster: with all its hosts, and their device; of a single device too.
        machine: that each host is.
    """

    cluster: Cluster
    machine: Machine

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return what options name.

        Args:
            options: `HardwareKeywords` and `ProcessKeywords`.

        Raises:
            MembenchError: there is no such device, cluster or machine, or they contradict each other.
        """
        device, cluster = options.get("device"), options.get("cluster")
        machine = as_machine(options.get("machine"), as_bytes(options.get("host_memory"), "host_memory"))
        if cluster is None:
            return cls(replace(SINGLE_DEVICE, device=in_process(as_device(device), options)), machine)
        return cls(as_cluster(cluster, nodes=options.get("nodes"), device=device, process=options), machine)
