"""Workload: what is trained, on which shapes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Workload:
    """One training step to be captured: ``loss(module(*inputs), *targets)`` and its gradients.

    Attributes:
        name: shown in records and tables.
        module: the network; its parameters may be on any device, ``meta`` included, where nothing is
            allocated and the step can be simulated but not run.
        loss: called with the module's output and the targets; returns a scalar tensor.
        inputs: example batch, tensors whose shapes and dtypes the step is captured for.
        targets: further arguments of the loss.
    """

    name: str
    module: nn.Module
    loss: Callable[..., Tensor]
    inputs: tuple[Any, ...]
    targets: tuple[Any, ...]
