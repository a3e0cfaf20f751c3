"""The tensors in which a weight is stored: itself, or those that a subclass wraps.

A quantized weight of torchao is stored in several, a `DTensor` in one, its part of the weight.
"""

from collections.abc import Callable

from torch import Tensor, nn

from membench.core.libraries.torch_internals import is_wrapper_subclass, unwrapped, wrapped_again


def stored(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors in which one is stored by name: ``weight``, or ``weight.qdata`` and ``weight.scale``.

    The only one has the name of the tensor.
    """
    if not is_wrapper_subclass(tensor):
        return {name: tensor}
    parts = unwrapped(tensor)
    if len(parts) == 1:
        return stored(name, *parts.values())
    return {key: each for part in parts for key, each in stored(f"{name}.{part}", parts[part]).items()}


def stored_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors in which a module's parameters are stored, by qualified name; tied ones once."""
    named = module.named_parameters()
    return {key: each for name, tensor in named for key, each in stored(name, tensor).items()}


def stored_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the tensors in which a module's buffers are stored, by qualified name; tied ones once."""
    named = module.named_buffers()
    return {key: each for name, tensor in named for key, each in stored(name, tensor).items()}


def with_stored(tensor: Tensor, new: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a tensor of the same class with each tensor in which it is stored replaced."""
    if not is_wrapper_subclass(tensor):
        return new(tensor)
    parts = {name: with_stored(part, new) for name, part in unwrapped(tensor).items()}
    return wrapped_again(tensor, parts)


def single_stored(tensor: Tensor) -> Tensor:
    """Return the tensor in which one is stored, itself if it is not a wrapper.

    Raises:
        ValueError: there are several.
    """
    [single] = stored("", tensor).values()
    return single


def wrapped_like(tensor: Tensor, single: Tensor) -> Tensor:
    """Return a tensor of the same class as another one, stored in a tensor; see `single_stored`."""
    return with_stored(tensor, lambda _: single)


def gradient_of(weight: Tensor, gradient: Tensor, wrapper: Tensor | None = None) -> Tensor:
    """Return a gradient as autograd leaves it in ``.grad``: a `DTensor`'s is one, without rows that pad a shard.

    Args:
        wrapper: without data, whose class the gradient had when it was captured; None: it is one like the weight.
    """
    if wrapper is not None:
        return wrapped_like(wrapper, gradient)
    if not is_wrapper_subclass(weight):
        return gradient
    shard = single_stored(weight)
    own = gradient.narrow(0, 0, len(shard)) if shard.dim() else gradient
    return wrapped_like(weight, own).requires_grad_(False)  # as the weight does
