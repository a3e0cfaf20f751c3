"""Workload: a module, its loss and an example batch."""

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.graph.precision import Precision
from membench.core.libraries.torch_internals import storage_address, tree_map_only
from membench.core.step.arguments import Arguments, call_with, check_leaf, named_leaves, tensors_in
from membench.core.step.kernels import Compiled
from membench.core.step.module_checks import check_module


@dataclass(frozen=True)
class Workload:
    """One step to be captured: ``loss(module(*inputs), *targets)`` and its gradients, or only ``module(*inputs)``.

    Or ``module(*inputs)`` and, from gradients that its caller passes for the outputs, the gradients of weights and
    inputs.

    Inputs or targets in a dict are passed by name: ``module(**inputs)``.

    Attributes:
        name: shown in records and tables.
        module: the network; its parameters may be on any device, including ``meta``, where nothing is allocated and the
            step can be simulated but not run.
        loss: called with the module's output and the targets; returns a scalar tensor. None: a step of inference,
            without gradients, whose result is the module's output.
        inputs: example batch; the step is captured for the shapes and dtypes of its tensors, which may lie in nested
            tuples, lists and dicts.
        targets: further arguments of the loss.
        loss_scale: factor of the loss in the step that this is a micro-batch of.
        gradients_from_caller: the loss is the caller's: the step returns the module's output, and computes gradients
            once the caller has passed those of the output. Inputs that require a gradient get one.
        runs_own_hooks: the hooks of the module itself belong to the step; those of its layers always do.
        accumulates: gradients are added to those of the step's earlier micro-batches.
        precision: in which the step computes, as on a module that is converted, or within `torch.autocast`; None: as
            the module is.
        channels_last: four-dimensional weights, buffers and inputs have that memory format.
        holds_output: the program has the module's output in a variable, ``output = module(*inputs)``, until the next
            step's takes its place; otherwise it is given back once the loss is computed.
        holds_gradients: the last step's gradients of weights are freed behind the forward pass, and not before it.
        compiled: what of it was given to `torch.compile` and may be captured as it is written.
        places_gradients: the gradient of a weight in parts gets the weight's placements, as optimizers bring it to
            them.
        meshes: torch's `DeviceMesh` objects over whose ranks the step is divided, besides those of weights in parts.

    Raises:
        MembenchError: the module is not a module, the loss cannot be called, there are targets without a loss, the
            batch is empty, or a tensor is sparse or nested, or lies in an object that torch's pytree cannot open.
        UnsupportedModel: the module is wrapped, or has weights without a shape.
    """

    name: str
    module: nn.Module
    loss: Callable[..., Tensor] | None
    inputs: Arguments
    targets: Arguments = ()
    loss_scale: float = 1.0
    gradients_from_caller: bool = False
    runs_own_hooks: bool = True
    accumulates: bool = False
    precision: Precision | None = None
    channels_last: bool = False
    holds_output: bool = False
    holds_gradients: bool = False
    compiled: Compiled | None = None
    places_gradients: bool = False
    meshes: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.module, nn.Module):
            raise MembenchError(f"the module is a torch.nn.Module, not {self.module!r}")
        if self.loss is not None and (not callable(self.loss) or isinstance(self.loss, type)):
            raise MembenchError(
                f"the loss is called with the module's output and the targets, and cannot be {self.loss!r}"
            )
        if self.loss is not None:
            _check_loss(self.loss, self.targets)
        if self.loss is None and self.targets:
            raise MembenchError("a step of inference has no targets; pass (inputs, ()), or a loss")
        check_module(self.name, self.module)
        for kind, arguments in (("inputs", self.inputs), ("targets", self.targets)):
            for name, leaf in named_leaves(kind, arguments):
                check_leaf(name, leaf)
        if not self.batch_size:
            raise MembenchError("the batch is empty; pass at least one sample")

    @property
    def trains(self) -> bool:
        """Whether the step computes gradients."""
        return self.loss is not None or self.gradients_from_caller

    @property
    def batch_size(self) -> int:
        """Samples in the batch: the first dimension of the first tensor; 1 without a tensor."""
        first = next(iter(tensors_in(self.inputs)), None)
        return first.shape[0] if first is not None and first.dim() else 1

    @property
    def device(self) -> torch.device:
        """The device of the batch's first tensor."""
        return tensors_in(self.inputs)[0].device

    def output(self) -> Any:
        """Return what the module returns for the example batch, in plain PyTorch."""
        return call_with(self.module, self.inputs)

    def check_gradients_are_allowed(self) -> None:
        """Refuse a step of training within `torch.inference_mode`.

        Raises:
            MembenchError: `torch.inference_mode` is on.
        """
        if self.trains and torch.is_inference_mode_enabled():
            raise MembenchError(
                "a training step needs gradients; compile and call it outside torch.inference_mode() "
                "(torch.no_grad() is fine)"
            )

    def to(self, device: torch.device) -> "Workload":
        """Return the workload on a device; the module itself moves there."""
        inputs, targets = (
            tree_map_only(Tensor, lambda tensor: tensor.to(device), each) for each in (self.inputs, self.targets)
        )
        return replace(self, module=self.module.to(device), inputs=inputs, targets=targets)

    def converted(self) -> "Workload":
        """Return the workload in its precision and memory format; the module itself is converted.

        Within `torch.autocast`, and in TF32, weights and inputs stay as they are.
        """
        dtype = None if self.precision is None else self.precision.dtype
        memory_format = torch.channels_last if self.channels_last else torch.preserve_format

        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(
                dtype=dtype if tensor.is_floating_point() else None,
                memory_format=memory_format if tensor.dim() == 4 else torch.preserve_format,
            )

        module = self.module.to(dtype=dtype) if dtype else self.module
        if self.channels_last:
            module = module.to(memory_format=torch.channels_last)
        return replace(self, module=module, inputs=tree_map_only(Tensor, convert, self.inputs))

    def of_size(self, size: int) -> "Workload":
        """Return this workload, or its first `size` samples as a micro-batch of this step.

        The loss must be a mean over the samples: each micro-batch counts by its share of them, as in gradient
        accumulation. Layers that depend on the whole batch, above all batch norm, see only the micro-batch (moDNN 5.1
        leaves that open).

        Raises:
            UnsupportedModel: a tensor's first dimension is not the batch, there is no loss, or the loss is not a mean
                over the samples.
        """
        if size == self.batch_size:
            return self
        if self.loss is None:
            raise UnsupportedModel(
                self.name, "a step of inference has no gradients to accumulate", "pass smaller batches"
            )
        if isinstance(self.loss, nn.CrossEntropyLoss | nn.NLLLoss) and self.loss.weight is not None:
            raise UnsupportedModel(
                "loss",
                "micro-batches add up to a mean over the samples, but its mean is weighted by their classes",
                "pass a tensor of one weight per sample among the targets, or run the whole batch",
            )
        reduction = getattr(self.loss, "reduction", "mean")
        if reduction not in ("mean", "batchmean"):
            raise UnsupportedModel(
                "loss",
                f"micro-batches add up to a mean over the samples, but its reduction is {reduction!r}",
                "take the mean and scale the gradients, or run the whole batch",
            )
        part = self._part(0, size)
        return replace(part, loss_scale=size / self.batch_size, accumulates=True, holds_gradients=False)

    def with_batch(self, size: int) -> "Workload":
        """Return the step on another number of samples, of which only the shapes are known, and what is passed twice.

        Raises:
            UnsupportedModel: a tensor's first dimension is not the batch.
        """
        if size == self.batch_size:
            return self

        made: dict[Hashable, Tensor] = {}

        def resized(tensor: Tensor) -> Tensor:
            if self._is_of_all(tensor):
                return tensor
            place = storage_address(tensor.untyped_storage()), tensor.storage_offset(), tensor.shape
            if place not in made:
                made[place] = torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
            return made[place]

        first = (self.samples(each, 0, 1) for each in (self.inputs, self.targets))
        inputs, targets = (tree_map_only(Tensor, resized, each) for each in first)
        return replace(self, inputs=inputs, targets=targets)

    def share(self, process: int, processes: int) -> "Workload":
        """Return the workload of one of several processes that divide a batch into equal shares.

        Raises:
            MembenchError: the batch cannot be divided equally.
            UnsupportedModel: see `of_size`.
        """
        if processes == 1:
            return self
        size = share_size(self.batch_size, processes)
        return self._part(process * size, (process + 1) * size)

    def _part(self, start: int, stop: int) -> "Workload":
        inputs, targets = (self.samples(each, start, stop) for each in (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets)

    def samples(self, arguments: Arguments, start: int, stop: int) -> Arguments:
        """Return the samples from `start` to `stop` of a batch's inputs or targets.

        Raises:
            UnsupportedModel: see `of_size`.
        """
        for argument in tensors_in(arguments):
            if self._is_of_all(argument):
                continue
            if not argument.dim() or len(argument) != self.batch_size:
                raise UnsupportedModel(
                    self.name,
                    f"an argument of shape {tuple(argument.shape)} cannot be cut into micro-batches of a batch of "
                    f"{self.batch_size}",
                    "put the batch first in every tensor, or run the whole batch",
                )

        def cut(tensor: Tensor) -> Tensor:
            return tensor if self._is_of_all(tensor) else tensor[start:stop]

        samples: Arguments = tree_map_only(Tensor, cut, arguments)
        return samples

    def _is_of_all(self, tensor: Tensor) -> bool:
        """Return whether a tensor is a number of all samples of a step of inference, such as the tokens in a cache."""
        return self.loss is None and not self.gradients_from_caller and not tensor.dim()


def _check_loss(loss: Callable[..., Tensor], targets: Arguments) -> None:
    """Refuse a loss that cannot be called with these targets."""
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):  # a function in C has none
        return
    try:
        call_with(signature.bind, targets, None)
    except TypeError as error:
        given = "1 target" if len(targets) == 1 else f"{len(targets)} targets"
        raise MembenchError(
            f"the loss is called with the module's output and {given}, and takes {signature} ({error}); give the batch "
            "as many targets as that, or pass a function around the loss"
        ) from error


def share_size(batch_size: int, shares: int) -> int:
    """Return the samples of each of several equal shares of a batch.

    Raises:
        MembenchError: the batch cannot be divided equally.
    """
    size, rest = divmod(batch_size, shares)
    if rest:
        raise MembenchError(
            f"a batch of {batch_size} cannot be divided into {shares} equal shares; use a multiple of {shares}"
        )
    return size
