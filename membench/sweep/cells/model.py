"""Model: a network and its example batch, as a file of ``conf/model`` describes them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isclass
from typing import Any

import torch
from torch import nn

from membench.capture.kept import Unbuilt
from membench.core import configuration
from membench.core.configuration import instantiate
from membench.core.errors import MembenchError
from membench.core.step.arguments import Arguments, as_arguments
from membench.core.step.workload import Workload
from membench.core.targets import find_function, find_object
from membench.models.fine_tuning import UNQUANTIZED, checkpointed, quantized, with_adapters
from membench.sweep.cells.example_batch import example

_OF_SOURCES = ("membench.models.", "torch.nn.", "torchvision.models.", "timm.")
"""How names of networks begin that follow from their options and from installed sources alone, and from no file."""


@dataclass(frozen=True)
class Model:
    """A configured network.

    Attributes:
        module: description of the network, instantiated for each workload.
        loss: description of its loss: a class and its arguments, or a function of the output and the targets, and
            further arguments; None: a model for inference.
        inputs, targets: description of the example batch, see `example_batch`; arguments by name if it is a dict, one
            after another if it is a list.
        sizes: numbers that a description refers to by a word.
        quantization: quantization of the linear layers' weights, see `quantized`; None: they stay as they are.
        unquantized: last names of linear layers that stay as they are; None: `UNQUANTIZED`.
        bnb_4bit_quant_storage: dtype of the elements of packed weights, see `quantized`; None: uint8.
        lora: options of adapters, see `with_adapters`; None: all weights are trained that the network trains.
        checkpointing: whether the network's own checkpointing is switched on, see `checkpointed`.
    """

    name: str
    module: Mapping[str, Any]
    loss: Mapping[str, Any] | None
    inputs: Any
    targets: Any
    sizes: Mapping[str, Any]
    quantization: str | None = None
    unquantized: Sequence[str] | None = None
    lora: Mapping[str, Any] | None = None
    checkpointing: bool = False
    bnb_4bit_quant_storage: str | None = None

    @classmethod
    def from_configuration(cls, values: Mapping[str, Any]) -> "Model":
        """Return the model that the resolved options of a file of ``conf/model`` describe.

        ``input_shape``, ``vocabulary``, ``classes`` and ``target_shape`` are short for one input and one target:
        numbers, or with a vocabulary tokens, and classes.
        """
        inputs, targets = values.get("inputs"), values.get("targets", [])
        if not inputs:
            inputs = [_described(values["input_shape"], values.get("vocabulary"))]
            if not targets and (classes := values.get("classes")):
                targets = [_described(values.get("target_shape", []), classes)]
        return cls(
            values["name"],
            values["module"],
            values["loss"],
            inputs,
            targets,
            values,
            values.get("quantization"),
            values.get("unquantized"),
            values.get("lora") or None,
            bool(values.get("checkpointing")),
            values.get("bnb_4bit_quant_storage"),
        )

    @classmethod
    def named(cls, name: str) -> "Model":
        """Return the model of ``conf/model/<name>.yaml``.

        Raises:
            MembenchError: there is no such file; lists the files that there are.
        """
        return cls.from_configuration(configuration.read("model", name))

    def workload(self, batch_size: int, *, seed: int, device: str, is_kept: bool = False) -> Workload:
        """Build the network and an example batch, both from the seed.

        Args:
            device: ``"cpu"``, or ``"meta"`` for shapes without values.
            is_kept: the workload is captured alone, so that a library's network is `Unbuilt` until it is.
        """
        build = partial(self._built_from, seed, device)
        is_kept = is_kept and all(name.startswith(_OF_SOURCES) for name in self._targets())
        module = Unbuilt(repr((self, batch_size, seed, device)), build) if is_kept else build()
        with torch.device(device):
            loss = build_loss(self.loss)
            inputs, targets = self.example_batch(batch_size)
        if loss is None:
            return Workload(self.name, module.eval(), None, inputs)
        return Workload(self.name, module, loss, inputs, targets)

    def _targets(self) -> Iterator[str]:
        """Yield the names of the classes and functions that make the network and its loss."""
        waiting: list[Any] = [self.module, self.loss]
        while waiting:
            described = waiting.pop()
            if isinstance(described, Mapping):
                waiting += described.values()
                yield from [described["_target_"]] if "_target_" in described else []
            elif isinstance(described, list):
                waiting += described

    def _built_from(self, seed: int, device: str) -> nn.Module:
        """Return the network, for inference if it has no loss."""
        torch.manual_seed(seed)
        module = self._built_on(device)
        return module.eval() if self.loss is None else module

    def _built_on(self, device: str) -> nn.Module:
        try:
            with torch.device(device):
                return self._built()
        except NotImplementedError:  # of tensors without values, with which a constructor computes sizes
            if device != "meta":
                raise
        with torch.device("cpu"):
            return self._built().to(device)

    def _built(self) -> nn.Module:
        module: nn.Module = instantiate(self.module, nn.Module)
        if self.quantization is not None:
            kept = UNQUANTIZED if self.unquantized is None else self.unquantized
            module = quantized(module, self.quantization, kept, self.bnb_4bit_quant_storage)
        elif self.bnb_4bit_quant_storage is not None:
            raise MembenchError(
                "bnb_4bit_quant_storage is for quantized weights; give model.quantization=bnb.nf4 as well, or leave it "
                "out"
            )
        module = module if self.lora is None else with_adapters(module, self.lora)
        return checkpointed(module) if self.checkpointing else module

    def example_batch(self, batch_size: int) -> tuple[Arguments, Arguments]:
        """Return random inputs and targets.

        Raises:
            MembenchError: see `example`.
        """
        inputs, targets = (
            as_arguments(example(f"model.{name}", described, batch_size, self.sizes))
            for name, described in (("inputs", self.inputs), ("targets", self.targets))
        )
        return inputs, targets


def build_loss(described: Mapping[str, Any] | None) -> Any:
    """Return the loss that a description stands for: a class's object, or a function with arguments."""
    if described is None:
        return None
    if isclass(find_object(described["_target_"])):
        return instantiate(described)
    target = find_function(described["_target_"])
    options = {name: instantiate(value) for name, value in described.items() if name != "_target_"}
    return partial(target, **options) if options else target


def _described(shape: Sequence[int], below: int | None) -> dict[str, Any]:
    return {"shape": list(shape)} if below is None else {"shape": list(shape), "below": below}
