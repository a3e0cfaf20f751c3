"""Baselines: the same step on a real device, run by PyTorch or torchtune without a schedule of membench."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from membench.core.errors import UnsupportedStrategy
from membench.core.step.arguments import call_with
from membench.core.step.workload import Workload


class Baseline(ABC):
    """A way to run a training step that membench does not schedule."""

    @abstractmethod
    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        """Return the context in which the forward pass saves what the backward pass needs."""

    def step(self, workload: Workload) -> Callable[[], Tensor]:
        """Return a function that runs one step and leaves gradients, as ``loss.backward()`` does.

        Raises:
            UnsupportedStrategy: the model is for inference, or the package that runs the step is not installed.
        """
        criterion = workload.loss
        if criterion is None:
            raise UnsupportedStrategy("a baseline runs training steps, and this model is there for inference")

        def run() -> Tensor:
            with self.saving(workload), _casting(workload):
                loss = call_with(criterion, workload.targets, workload.output())
            loss.backward()
            return loss.detach()

        return run


def _casting(workload: Workload) -> AbstractContextManager[Any]:
    dtype = workload.precision and workload.precision.autocast_dtype
    return torch.autocast(workload.device.type, dtype) if dtype else nullcontext()


class PlainPyTorch(Baseline):
    """Eager PyTorch without membench."""

    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        return nullcontext()


class SaveOnCpu(Baseline):
    """PyTorch's own offloading of every saved tensor, which waits for each copy."""

    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        return torch.autograd.graph.save_on_cpu(pin_memory=workload.device.type != "cpu")


class TorchtuneOffload(Baseline):
    """torchtune's offloading on a separate stream."""

    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        try:
            from torchtune.training import OffloadActivations
        except ImportError as error:
            raise UnsupportedStrategy(
                "torchtune's OffloadActivations cannot be imported; install torchtune to compare with it"
            ) from error
        return OffloadActivations(use_pin_memory=True, use_streams=True)
