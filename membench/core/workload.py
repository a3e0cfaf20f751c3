"""Workload: what is trained or inferred, on which shapes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from membench.core.errors import MembenchError, UnsupportedModel


@dataclass(frozen=True)
class Workload:
    """One step to be captured: ``loss(module(*inputs), *targets)`` and its gradients, or ``module(*inputs)`` alone.

    Attributes:
        name: shown in records and tables.
        module: the network; its parameters may be on any device, ``meta`` included, where nothing is
            allocated and the step can be simulated but not run.
        loss: called with the module's output and the targets; returns a scalar tensor. None: the step is one of
            inference, without gradients, and the module's output is its result.
        inputs: example batch, tensors whose shapes and dtypes the step is captured for.
        targets: further arguments of the loss.
        weight: of the loss in the step that this is a micro-batch of.
        accumulates: gradients are added to what earlier micro-batches of the step have left.

    Raises:
        MembenchError: the module is no module, the loss cannot be called, there are targets without one, the batch is empty,
            or an argument is sparse or nested.
        UnsupportedModel: the module is wrapped, or has weights without a shape; an argument holds tensors inside.
    """

    name: str
    module: nn.Module
    loss: Callable[..., Tensor] | None
    inputs: tuple[Any, ...]
    targets: tuple[Any, ...] = ()
    weight: float = 1.0
    accumulates: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise MembenchError(f"the module is a torch.nn.Module, not {self.module!r}")
        if self.loss is not None and (not callable(self.loss) or isinstance(self.loss, type)):
            raise MembenchError(
                f"the loss is called with the module's output and the targets, and cannot be {self.loss!r}"
            )
        if self.loss is None and self.targets:
            raise MembenchError("a step of inference has no targets: give (inputs, ()), or a loss for them")
        _check_module(self.name, self.module)
        for kind, arguments in (("inputs", self.inputs), ("targets", self.targets)):
            for position, argument in enumerate(arguments):
                _check_argument(f"{kind}[{position}]", argument)
        if not self.batch_size:
            raise MembenchError("the batch is empty; give one of a sample or more")

    @property
    def batch_size(self) -> int:
        """Samples in the batch: the first dimension of the first tensor; 1 without one."""
        first = next((item for item in self.inputs if isinstance(item, Tensor)), None)
        return first.shape[0] if first is not None and first.dim() else 1

    def check_gradients_are_allowed(self) -> None:
        """Refuse a step of training where nothing may have a gradient.

        Raises:
            MembenchError: `torch.inference_mode` is on.
        """
        if self.loss is not None and torch.is_inference_mode_enabled():
            raise MembenchError(
                "a step of training makes gradients, which torch.inference_mode() forbids; compile and call it outside, or "
                "within torch.no_grad(), which it does not mind"
            )

    def to(self, device: torch.device) -> "Workload":
        """Return the work on a device, to which the module itself moves."""

        def moved(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(item.to(device) if isinstance(item, Tensor) else item for item in arguments)

        return replace(
            self, module=self.module.to(device), inputs=moved(self.inputs), targets=moved(self.targets)
        )

    def of_size(self, size: int) -> "Workload":
        """Return this work, or that on the first `size` samples as a part of this step.

        The loss must be a mean over the samples: each part counts by its share of them, as in gradient accumulation.
        What depends on the whole batch, batch norm above all, sees the part alone (moDNN 5.1 leaves that open).

        Raises:
            UnsupportedModel: a tensor's first dimension is not the batch, there is no loss, or it says that it is no mean
                over the samples.
        """
        if size == self.batch_size:
            return self
        if self.loss is None:
            raise UnsupportedModel(
                self.name, "a step of inference has no gradients that add up", "give it smaller batches"
            )
        if isinstance(self.loss, nn.CrossEntropyLoss | nn.NLLLoss) and self.loss.weight is not None:
            raise UnsupportedModel(
                "loss",
                "micro-batches add up to a mean over the samples, and its mean is weighted by their classes",
                "weigh by a tensor of a number for each sample among the targets, or run the whole batch",
            )
        reduction = getattr(self.loss, "reduction", "mean")
        if reduction not in ("mean", "batchmean"):
            raise UnsupportedModel(
                "loss",
                f"micro-batches add up to a mean over the samples, and its reduction is {reduction!r}",
                "take the mean and scale the gradients, or run the whole batch",
            )
        return replace(
            self,
            inputs=self.part(self.inputs, 0, size),
            targets=self.part(self.targets, 0, size),
            weight=size / self.batch_size,
            accumulates=True,
        )

    def share(self, process: int, processes: int) -> "Workload":
        """Return the work of one of several processes that share a batch: equal parts, each a batch of its own.

        Raises:
            MembenchError: the batch does not divide.
            UnsupportedModel: as `of_size`.
        """
        size = share_size(self.batch_size, processes)
        bounds = (process * size, (process + 1) * size)
        return replace(self, inputs=self.part(self.inputs, *bounds), targets=self.part(self.targets, *bounds))

    def part(self, arguments: tuple[Any, ...], start: int, stop: int) -> tuple[Any, ...]:
        """Return the samples from `start` to `stop` of a batch's inputs or targets.

        Raises:
            UnsupportedModel: as `of_size`.
        """
        for argument in arguments:
            if isinstance(argument, Tensor) and (not argument.dim() or len(argument) != self.batch_size):
                raise UnsupportedModel(
                    self.name,
                    f"an argument of shape {tuple(argument.shape)} cannot be cut into micro-batches of a batch of "
                    f"{self.batch_size}",
                    "put the batch first in every tensor, or run the whole batch",
                )
        return tuple(item[start:stop] if isinstance(item, Tensor) else item for item in arguments)


def _check_module(name: str, module: nn.Module) -> None:
    if isinstance(module, nn.DataParallel | DistributedDataParallel):
        raise UnsupportedModel(
            name,
            "it spreads its batch over devices itself",
            "give the module inside it, with exchange='as_made'",
        )
    for path, child in module.named_modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise UnsupportedModel(
                path or name,
                "TorchScript does not tell which layer is running",
                "give the module that was scripted",
            )
    for tensor_name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if is_lazy(tensor):
            raise UnsupportedModel(
                tensor_name, "its shape is not known yet", "call the module once on a batch, then capture it"
            )
        if tensor.is_conj() or tensor.is_neg():
            raise UnsupportedModel(
                tensor_name,
                "it is a conjugate view of other memory",
                "hold its resolve_conj().resolve_neg()",
            )


def _check_argument(name: str, argument: Any) -> None:
    """Refuse what would be captured as a constant although it is data, and so be the same in every step."""
    if isinstance(argument, Tensor):
        if not is_dense(argument):
            raise MembenchError(f"{name} is a sparse or nested tensor; give a dense one, as to_dense() makes")
        return
    for leaf in tree_leaves(argument):
        if isinstance(leaf, Tensor) or hasattr(leaf, "__array__"):
            within = "" if leaf is argument else f", with a {type(leaf).__name__} in it"
            raise MembenchError(
                f"{name} is a {type(argument).__name__}{within}; give each tensor as an argument of its own, and have "
                "a small module around yours put them together"
            )


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor has a shape and a storage."""
    return tensor.layout is torch.strided and not tensor.is_nested


def share_size(batch_size: int, shares: int) -> int:
    """Return the samples of each of several equal shares of a batch.

    Raises:
        MembenchError: the batch does not divide.
    """
    size, rest = divmod(batch_size, shares)
    if rest:
        raise MembenchError(
            f"a batch of {batch_size} has no {shares} equal shares; take a multiple of {shares}"
        )
    return size
