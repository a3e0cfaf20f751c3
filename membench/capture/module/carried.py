"""Tensors in objects that layers and weights carry, such as the statistics of bitsandbytes' quantized weights."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from membench.capture.operation import layout_of
from membench.capture.state.python_state import own_attributes
from membench.core.errors import UnsupportedModel
from membench.core.libraries.torch_internals import FakeTensorMode, storage_address

_NOT_HOLDERS = (Tensor, nn.Module, type, FunctionType, BuiltinFunctionType, MethodType, ModuleType)
_Holders = dict[int, tuple[str, Any]]
"""Objects and their names, by identity."""


class Carried:
    """What stands for carried tensors in a trace: views of a weight, an absent device's fakes, or themselves.

    A tensor of this machine stays as it is: the step computes on it.

    Args:
        device: the trace's device; see `Fakes.of`.
    """

    def __init__(self, mode: FakeTensorMode, device: torch.device | None) -> None:
        self._mode, self._device = mode, device
        self._is_absent = device is not None and device.type == "cuda" and device.index is None
        # by the address of a storage: the tensor, which keeps it, and the one that stands for it
        self._in_place_of: dict[int, tuple[Tensor, Tensor]] = {}
        self._of_weights: dict[str, dict[str, Any]] = {}
        # by name, "layer.weight.quant_state.absmax": what stands for a tensor, and the tensor
        self._tensors: dict[str, tuple[Tensor, Tensor]] = {}

    def check_moves(self, name: str) -> None:
        """Refuse a weight that is quantized when it is moved, unless it is about to be, to a GPU that is not at hand.

        Raises:
            UnsupportedModel: the step runs on the module as it is.
        """
        if not self._is_absent:
            raise UnsupportedModel(
                name,
                "it is quantized only when its module is moved to a device",
                "move the module to its device first, as in module.to('cpu')",
            )

    def add_weight(self, name: str, memory: Tensor, attributes: dict[str, Any], fake: Tensor) -> None:
        """Give a weight's fake tensor the attributes that the weight carries.

        Args:
            memory: a tensor in the memory that the fake one stands for.
        """
        self._in_place_of[storage_address(memory.untyped_storage())] = memory, fake
        if attributes:
            self._of_weights[name] = attributes
            vars(fake).update(self._replaced(name, attributes))

    @contextmanager
    def in_place(self, module: nn.Module, record: Callable[[str, Tensor, Tensor], object]) -> Iterator[None]:
        """Replace the tensors in objects that layers and weights carry, and restore the objects afterwards.

        Args:
            record: is called with the name of each carried tensor, what stands for it, and the tensor.
        """
        found = self._holders(module)
        before = [(holder, dict(vars(holder))) for _, holder in found.values()]
        try:
            for name, holder in found.values():
                holder.__dict__.update(self._replaced(name, holder.__dict__))
            for name, (tensor, real) in self._tensors.items():
                record(name, tensor, real)
            yield
        finally:
            for holder, attributes in before:
                holder.__dict__.clear()
                holder.__dict__.update(attributes)

    def _replaced(self, name: str, attributes: dict[str, Any]) -> dict[str, Any]:
        return {
            key: self._tensor(f"{name}.{key}", value) if isinstance(value, Tensor) else value
            for key, value in attributes.items()
        }

    def _tensor(self, name: str, tensor: Tensor) -> Tensor:
        layout = layout_of(tensor)
        _, memory = self._in_place_of.get(storage_address(tensor.untyped_storage()), (None, None))
        if memory is not None:
            return layout._replace(device=memory.device).fake_tensor(self._mode, view_of=memory)
        if self._is_absent or tensor.is_meta:
            device = self._device or torch.device("cpu")
            fake = layout._replace(offset=0, device=device).fake_tensor(self._mode)
            self._in_place_of[storage_address(tensor.untyped_storage())] = tensor, fake
            self._tensors[name] = fake, tensor
            return fake
        if self._device is not None and self._device.type != tensor.device.type:
            raise UnsupportedModel(
                name,
                f"it is on {tensor.device}, not on {self._device}",
                f"move the module there first, as in module.to({self._device.type!r})",
            )
        self._tensors[name] = tensor, tensor
        return tensor

    def _holders(self, module: nn.Module) -> _Holders:
        """Return what weights carry, and layers' dataclasses: these are states, unlike a mask, whose values count."""
        found: _Holders = {}
        for name, attributes in self._of_weights.items():
            for key, value in attributes.items():
                _add_holders(f"{name}.{key}", value, found)
        for path, layer in module.named_modules():
            for key, value in own_attributes(layer).items():
                if is_dataclass(value):
                    _add_holders(f"{path}.{key}" if path else key, value, found)
        return found


def _add_holders(name: str, value: Any, found: _Holders) -> None:
    """Add an object that carries tensors, or is a dataclass, which may come to carry some, and those within it."""
    if isinstance(value, _NOT_HOLDERS) or not hasattr(value, "__dict__") or id(value) in found:
        return
    attributes = vars(value)
    if is_dataclass(value) or any(isinstance(each, Tensor) for each in attributes.values()):
        found[id(value)] = name, value
        for key, each in attributes.items():
            _add_holders(f"{name}.{key}", each, found)
