"""The tensors of a step without data: weights, buffers and batch in the precision and the layout of the step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from membench.capture.gpu.virtual_gpu import OnCpu
from membench.capture.module.carried import Carried
from membench.capture.operation import layout_of
from membench.capture.operators.collectives import placed_like
from membench.capture.operators.unquantized import is_packed, is_unquantized, quantized
from membench.core.errors import UnsupportedModel
from membench.core.libraries.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    is_wrapper_subclass,
    storage_address,
    tree_map,
)
from membench.core.step.arguments import Arguments, tensors_in
from membench.core.step.opened import closed, opened
from membench.core.step.stored import stored, with_stored
from membench.core.step.workload import Workload

_NewFake = Callable[..., Tensor]


@dataclass(frozen=True)
class Fakes:
    """Fake tensors of a workload.

    Attributes:
        weights, buffers: by qualified name; tied ones have the first of their names.
        trained: the weights that get a gradient; none in a step of inference.
        inputs, targets: as the module and the loss take them; objects in them are those that the step changes.
        carried: further tensors that layers and weights carry.
    """

    weights: dict[str, Tensor]
    trained: dict[str, Tensor]
    buffers: dict[str, Tensor]
    inputs: Arguments
    targets: Arguments
    carried: Carried

    @classmethod
    def of(cls, workload: Workload, mode: FakeTensorMode, device: torch.device | None) -> Self:
        """Make them.

        Args:
            device: theirs, which determines the recorded kernels (on CUDA batch norm is cuDNN's). None: that of the
                workload's tensors, the CPU for meta tensors.

        Raises:
            UnsupportedModel: a weight that is trained is stored in several tensors, or in one in a step without a loss;
                or one is quantized only when it is moved.
        """
        precision = workload.precision
        dtype = None if precision is None else precision.dtype
        fake = partial(_fake, mode, device=device)
        converted = partial(fake, dtype=dtype, channels_last=workload.channels_last)

        def input_of(tensor: Tensor) -> Tensor:
            if not (workload.gradients_from_caller and tensor.requires_grad):
                return converted(tensor)
            if id(tensor) not in leaves:
                leaves[id(tensor)] = converted(tensor, requires_grad=True)
            return leaves[id(tensor)]

        carried = Carried(mode, device)
        leaves: dict[int, Tensor] = {}  # tensors with a gradient by identity: autograd sums up what meets in one
        weights = {}
        trained = {}
        for name, weight in workload.module.named_parameters():
            if workload.trains:
                _check_trained(name, weight, has_loss=workload.loss is not None)
            weights[name] = _weight(name, weight, carried, converted, dtype)
            if workload.trains and weight.requires_grad:
                trained[name] = leaves[id(weight)] = weights[name]
                if workload.places_gradients and is_wrapper_subclass(weight):
                    weights[name].register_hook(partial(placed_like, weight))
        return cls(
            weights=weights,
            trained=trained,
            buffers={name: with_stored(buffer, converted) for name, buffer in workload.module.named_buffers()},
            inputs=closed(tree_map(partial(_leaf, input_of, device), workload.inputs)),
            targets=closed(tree_map(partial(_leaf, fake, device), workload.targets)),
            carried=carried,
        )

    @property
    def stored_weights(self) -> dict[str, Tensor]:
        """The tensors in which weights are stored; see `stored`."""
        return {key: each for name, weight in self.weights.items() for key, each in stored(name, weight).items()}

    @property
    def stored_buffers(self) -> dict[str, Tensor]:
        """The tensors in which buffers are stored; see `stored`."""
        return {key: each for name, buffer in self.buffers.items() for key, each in stored(name, buffer).items()}

    def given(self) -> list[Tensor]:
        """Return what the module is called with: weights, buffers and the inputs' tensors."""
        return [*self.stored_weights.values(), *self.stored_buffers.values(), *tensors_in(opened(self.inputs))]

    def memory(self) -> dict[str, int]:
        """Return the addresses of stored weights and buffers by name."""
        tensors = {**self.stored_weights, **self.stored_buffers}
        return {name: storage_address(tensor.untyped_storage()) for name, tensor in tensors.items()}

    def check_members(self, module: nn.Module, memory: Mapping[str, int]) -> None:
        """Refuse a module that holds other tensors than these as its weights and buffers, or these in other memory.

        Args:
            memory: see `memory`, before the module ran.

        Raises:
            UnsupportedModel: names the weight or buffer.
        """
        for kind, given, held in (
            ("buffer", self.buffers, module.named_buffers()),
            ("weight", self.weights, module.named_parameters()),
        ):
            for name, tensor in held:
                if given.get(name) is not tensor:
                    raise UnsupportedModel(name, f"it replaces a {kind}", f"update the {kind} in place")
        if moved := next((name for name, address in self.memory().items() if memory[name] != address), None):
            raise UnsupportedModel(
                moved,
                "the module gives it other memory, as a layer does that converts it at its first call",
                "write to it in place, by copy_, or call the module once on a batch before",
            )

    def check_frozen(self) -> None:
        """Refuse a module that has unfrozen a weight in the step.

        Raises:
            UnsupportedModel: names the weight.
        """
        for name, weight in self.weights.items():
            if self.trained and weight.requires_grad and name not in self.trained:
                raise UnsupportedModel(
                    name, "the module unfreezes it when it is called", "unfreeze it before, with requires_grad_()"
                )

    @property
    def are_on_cpu(self) -> bool:
        """Whether weights and inputs are on the CPU, so that the kernels are the CPU's."""
        inputs = tensors_in(opened(self.inputs))
        return all(each.device.type == "cpu" for each in (*self.weights.values(), *inputs))


def _leaf(of_tensor: Callable[[Tensor], Tensor], device: torch.device | None, leaf: Any) -> Any:
    """Return a leaf of the arguments without data; a device is that of the tensors."""
    if isinstance(leaf, Tensor):
        return of_tensor(leaf)
    if isinstance(leaf, torch.device):
        return device or (torch.device("cpu") if leaf.type == "meta" else leaf)
    return leaf


def _weight(name: str, weight: Tensor, carried: Carried, new: _NewFake, dtype: torch.dtype | None) -> Tensor:
    """Return a weight's fake tensor: a parameter of the same class name, with the weight's attributes.

    Without gradients too `requires_grad` chooses kernels, for example `matmul`'s.
    """
    if is_wrapper_subclass(weight):
        several = len(stored(name, weight)) > 1
        with OnCpu():
            wrapper = with_stored(weight, partial(new, dtype=None) if several else new)
        vars(wrapper)["_is_param"] = True
        return wrapper.requires_grad_(weight.requires_grad)
    memory, attributes = weight, {} if isinstance(weight, FakeTensor) else dict(vars(weight))
    if is_unquantized(weight):
        carried.check_moves(name)
        memory, attributes = quantized(weight, dtype)
    fake = (partial(new, dtype=None) if is_packed(weight) else new)(memory, requires_grad=weight.requires_grad)
    carried.add_weight(name, memory, {**attributes, "_is_param": True}, fake)
    if not isinstance(weight, FakeTensor) and type(weight) is not nn.Parameter:
        fake.__class__ = _fake_class(type(weight))
    return fake


@cache
def _fake_class(kind: type[Tensor]) -> type[FakeTensor]:
    """Return a class of fake tensors by whose name a library knows its own weights."""
    return type(kind.__name__, (FakeTensor,), {"__module__": kind.__module__})


def _check_trained(name: str, weight: Tensor, *, has_loss: bool) -> None:
    if weight.requires_grad and len(stored(name, weight)) > 1:
        raise UnsupportedModel(
            name,
            f"it is trained, and {type(weight).__name__} stores it in other tensors, which have no gradients",
            "freeze it with requires_grad_(False), and train others, such as adapters",
        )
    if weight.requires_grad and is_wrapper_subclass(weight) and not has_loss:
        raise UnsupportedModel(
            name,
            f"a {type(weight).__name__} is trained, and the loss is computed outside of the step",
            "pass the loss to membench.compile",
        )


def _fake(
    mode: FakeTensorMode,
    tensor: Tensor,
    *,
    device: torch.device | None,
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
    requires_grad: bool = False,
) -> Tensor:
    """Return a fake tensor of the same shape; a meta tensor is traced as one on the CPU.

    The device determines the recorded kernels: on CUDA batch norm is cuDNN's.

    Args:
        dtype: dtype of floating-point elements; None: their own.
        channels_last: give it that layout if it has four dimensions; otherwise its strides are the same.
    """
    if device is None:
        device = torch.device("cpu") if tensor.is_meta else tensor.device
    layout = layout_of(tensor)._replace(offset=0, device=device)
    if dtype is not None and tensor.is_floating_point():
        layout = layout._replace(dtype=dtype)
    if channels_last and tensor.dim() == 4:
        stride = torch.empty(tensor.shape, device="meta").to(memory_format=torch.channels_last).stride()
        layout = layout._replace(stride=stride)
    return layout.fake_tensor(mode, requires_grad=requires_grad)
