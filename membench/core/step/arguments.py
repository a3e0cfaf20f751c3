"""Arguments of a module or a loss: a tuple of positional ones, or a dict of arguments by name, of nested tensors."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from membench.core.errors import MembenchError, ShapeMismatch
from membench.core.libraries.torch_internals import (
    FakeTensor,
    key_path,
    tree_flatten,
    tree_leaves,
    tree_leaves_with_path,
    tree_map,
)
from membench.core.step.opened import closed, objects_in, opened

Arguments = tuple[Any, ...] | dict[str, Any]
"""Arguments by position or by name: tensors, tuples, lists and dicts of tensors, or plain values."""


def as_arguments(given: Any) -> Arguments:
    """Return what a caller passes as a module's arguments: several in a tuple or list, a dict, or only one."""
    if isinstance(given, Mapping):
        return dict(given)
    return tuple(given) if isinstance(given, tuple | list) else (given,)


def call_with(function: Callable[..., Any], arguments: Arguments, *leading: Any) -> Any:
    """Return a function's result for arguments after the leading ones, with objects in place of opened ones."""
    arguments = closed(arguments)
    if isinstance(arguments, dict):
        return function(*leading, **arguments)
    return function(*leading, *arguments)


def tensors_in(arguments: Arguments) -> list[Tensor]:
    """Return the tensors of arguments, in order."""
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]


def map_leaves(function: Callable[..., Any], arguments: Arguments, *others: Any) -> Arguments:
    """Return arguments with each leaf replaced by a function of it, and of each other sequence's item for it."""
    leaves, structure = tree_flatten(arguments)
    return structure.unflatten([function(*each) for each in zip(leaves, *others, strict=True)])


def named_leaves(name: str, arguments: Arguments) -> list[tuple[str, Any]]:
    """Return the leaves of arguments, each with its place: ``inputs[0]``, ``inputs['images'][1]``."""
    return [(name + key_path(path), leaf) for path, leaf in tree_leaves_with_path(arguments)]


class ExpectedArguments:
    """The arguments for which a step was captured, flattened once for all of its calls.

    Args:
        name: name of the arguments, for errors.
        example: those of the capture.

    Attributes:
        leaves: leaves of the example, in order.
    """

    def __init__(self, name: str, example: Arguments) -> None:
        self.name = name
        self.leaves, self._structure = tree_flatten(example)
        self._example = example
        self._has_opened = bool(objects_in(example))

    def leaves_of(self, given: Any) -> list[Any]:
        """Return the leaves of given arguments in the expected order, which that of a dict's keys does not change.

        Raises:
            ShapeMismatch: their structure is another one.
        """
        arguments, expected = as_arguments(given), self._example
        if self._has_opened:
            arguments = opened(arguments)
        leaves, structure = tree_flatten(arguments)
        if structure == self._structure:
            return leaves
        if isinstance(expected, tuple) and isinstance(arguments, tuple) and len(arguments) != len(expected):
            raise ShapeMismatch(f"the step was captured with {len(expected)} {self.name} and got {len(arguments)}")
        try:
            return list(self._structure.flatten_up_to(arguments))
        except ValueError as error:
            raise ShapeMismatch(
                f"the step was captured with {self.name} nested as {_nesting(expected)} and got {_nesting(arguments)}"
            ) from error

    def place(self, position: int) -> str:
        """Return the place of a leaf, as `named_leaves` does."""
        return named_leaves(self.name, self._example)[position][0]

    def nested(self, leaves: Iterable[Any]) -> Arguments:
        """Return leaves in the containers of the example."""
        nested: Arguments = self._structure.unflatten(leaves)
        return nested


def check_leaf(name: str, leaf: Any) -> None:
    """Refuse data that would be captured as a constant, and so be the same in every step.

    Raises:
        MembenchError: the leaf is not a dense tensor of this process, and has or is data.
    """
    if isinstance(leaf, Tensor):
        if is_distributed(leaf):
            raise MembenchError(f"{name} is a DTensor; pass this process's share of it, its to_local()")
        if not is_dense(leaf):
            raise MembenchError(f"{name} is a sparse or nested tensor; pass a dense one, for example its to_dense()")
        if has_own_functions(leaf) or has_own_operators(leaf):
            raise MembenchError(
                f"{name} is a {type(leaf).__name__}, whose class changes what torch's functions do; pass a plain "
                "tensor, for example its as_subclass(torch.Tensor)"
            )
        return
    held = [each for each in tree_leaves(opened(getattr(leaf, "__dict__", {}))) if isinstance(each, Tensor)]
    if held or hasattr(leaf, "__array__"):
        within = ", with a Tensor in it" if held else ""
        raise MembenchError(
            f"{name} is a {type(leaf).__name__}{within}; pass tensors, or tuples, lists and dicts of tensors"
        )


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor has a shape and a storage."""
    return tensor.layout is torch.strided and not tensor.is_nested


def has_own_functions(tensor: Tensor) -> bool:
    """Return whether a tensor's class changes what torch's functions do, which a trace of plain tensors leaves out.

    Those of torchvision do not: they only say that an image is one, and return plain tensors.
    """
    functions = (each.__torch_function__ for each in (type(tensor), Tensor, nn.Parameter))
    own, *of_tensors = (getattr(function, "__func__", function) for function in functions)
    return own not in of_tensors and not type(tensor).__module__.startswith("torchvision.tv_tensors")


def has_own_operators(tensor: Tensor) -> bool:
    """Return whether a tensor's class runs torch's operators in its own way, below autograd."""
    is_own = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
    return is_own and not isinstance(tensor, FakeTensor)


def is_distributed(tensor: Tensor) -> bool:
    """Return whether a tensor is torch's DTensor, whose class takes a second to import."""
    return type(tensor).__module__.startswith("torch.distributed.")


def _nesting(arguments: Arguments) -> str:
    return str(tree_map(lambda _: "_", arguments)).replace("'_'", "_")
