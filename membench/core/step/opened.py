"""Objects with attributes among arguments and outputs, such as a cache of keys and values, opened to containers.

Torch's pytree opens tuples, lists and dicts, and classes that were registered in it. An object of another class is one
leaf, so that its tensors would be the same in every step. It is opened here without registering its class, which would
change what other programs of the process see: an `Opened` takes its place, and a new object that of the `Opened` where
the module is called.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, final

import torch
from torch import Tensor, nn

from membench.core.libraries.torch_internals import register_container, tree_leaves, tree_map

_BUILTIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)


@final
@dataclass(frozen=True)
class Opened:
    """An object as its class and its attributes, a container to torch's pytree.

    Attributes:
        kind: its class.
        names, values: names and values of its attributes; objects among the values are opened.
    """

    kind: type
    names: tuple[str, ...]
    values: tuple[Any, ...]


register_container(
    Opened,
    lambda item: (item.values, (item.kind, item.names)),
    lambda values, context: Opened(context[0], context[1], tuple(values)),
    lambda item: item.names,
)


def opened(tree: Any) -> Any:
    """Return nested containers with an `Opened` for each object among their leaves that has attributes.

    Functions, modules, arrays and members of an enumeration stay, and objects that refer to themselves.
    """
    return _opened(tree, ())


def _opened(tree: Any, around: tuple[int, ...]) -> Any:
    return tree_map(lambda leaf: _opened_leaf(leaf, around), tree)


def _opened_leaf(leaf: Any, around: tuple[int, ...]) -> Any:
    if not _has_attributes(leaf) or id(leaf) in around:
        return leaf
    attributes = vars(leaf)
    values = tuple(_opened(value, (*around, id(leaf))) for value in attributes.values())
    return Opened(type(leaf), tuple(attributes), values)


def _has_attributes(leaf: Any) -> bool:
    """Return whether an object is its dict of attributes and nothing else."""
    if isinstance(leaf, (Tensor, nn.Module, type, Enum, torch.Generator, *_BUILTIN)) or callable(leaf):
        return False
    has_slots = any("__slots__" in vars(kind) and vars(kind)["__slots__"] for kind in type(leaf).__mro__)
    is_its_dict = isinstance(getattr(leaf, "__dict__", None), dict) and not has_slots
    return is_its_dict and not hasattr(leaf, "__array__") and _new(type(leaf)) is not None


def _new(kind: type) -> Any:
    """Return an object without attributes, None of a class that holds more, as exceptions and queues do."""
    maker = SimpleNamespace if issubclass(kind, SimpleNamespace) else object
    try:
        return maker.__new__(kind)  # not the class's own, which may want arguments
    except TypeError:
        return None


def closed(tree: Any) -> Any:
    """Return nested containers with a new object for each `Opened`."""
    return tree_map(
        lambda leaf: _closed(leaf) if isinstance(leaf, Opened) else leaf,
        tree,
        is_leaf=lambda item: isinstance(item, Opened),
    )


def _closed(item: Opened) -> Any:
    made = _new(item.kind)
    vars(made).update(zip(item.names, closed(item.values), strict=True))
    return made


def objects_in(tree: Any) -> tuple[Opened, ...]:
    """Return each `Opened` in nested containers, in order; not those within another."""
    items = tree_leaves(tree, is_leaf=lambda item: isinstance(item, Opened))
    return tuple(item for item in items if isinstance(item, Opened))


def let_go(tree: Any) -> None:
    """Drop the attributes of each object among the leaves of nested containers, so that it holds no tensor."""
    for leaf in filter(_has_attributes, tree_leaves(tree)):
        vars(leaf).clear()


def change(tree: Any, after: Iterable[Opened]) -> None:
    """Give each object among the leaves of nested containers other attributes.

    Args:
        after: for each object, in order.
    """
    objects = filter(_has_attributes, tree_leaves(tree))
    for leaf, state in zip(objects, after, strict=True):
        vars(leaf).clear()
        vars(leaf).update(vars(closed(state)))
