"""What strategies are compared with on a real device: the same step run by others."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from membench.core.configuration import instantiate
from membench.core.errors import UnsupportedStrategy
from membench.core.record import Configuration
from membench.core.workload import Workload


class Baseline(ABC):
    """A way to run a training step that membench does not schedule."""

    name: ClassVar[str]

    @abstractmethod
    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        """Return the context in which the forward pass saves what the backward pass needs."""

    def step(self, workload: Workload) -> Callable[[], Tensor]:
        """Return a function that runs one step and leaves gradients, as ``loss.backward()`` does.

        Raises:
            UnsupportedStrategy: it is a step of inference; or what runs it, that something is not installed.
        """
        criterion = workload.loss
        if criterion is None:
            raise UnsupportedStrategy("a baseline runs training steps, and this model is there for inference")

        def run() -> Tensor:
            with self.saving(workload):
                loss = criterion(workload.module(*workload.inputs), *workload.targets)
            loss.backward()
            return loss.detach()

        return run


def baseline_of(configuration: Configuration) -> Baseline | None:
    """Return the baseline of this file that a cell has in its strategy's place, if it has one."""
    baseline = configuration["strategy"]["_target_"].rpartition(".")[0] == __name__
    return instantiate(configuration["strategy"]) if baseline else None


class PlainPyTorch(Baseline):
    """Eager PyTorch without membench."""

    name = "pytorch"

    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        return nullcontext()


class SaveOnCpu(Baseline):
    """PyTorch's own offloading of everything that is saved, which waits for each copy."""

    name = "save_on_cpu"

    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        return torch.autograd.graph.save_on_cpu(pin_memory=workload.inputs[0].device.type == "cuda")


class TorchtuneOffload(Baseline):
    """torchtune's offloading on a stream of its own."""

    name = "torchtune_offload"

    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        try:
            from torchtune.training import OffloadActivations
        except ImportError as error:
            raise UnsupportedStrategy(
                "torchtune's OffloadActivations cannot be imported; install torchtune to compare with it"
            ) from error
        return OffloadActivations(use_pin_memory=True, use_streams=True)
