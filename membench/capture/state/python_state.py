"""Python side effects of a module: tracing executes them once; a compiled step never repeats them."""

import random
from collections import OrderedDict, deque
from collections.abc import Iterable
from copy import copy
from typing import Any, Self

import numpy as np
from torch import Tensor, nn

from membench.core.errors import UnsupportedModel
from membench.core.libraries.torch_internals import MODULE_ATTRIBUTES, FakeTensor, tree_leaves

_CONTAINERS = (list, dict, OrderedDict, deque)
_PLAIN = (bool, int, float, str)


class PythonState:
    """The attributes of a module's layers but weights, buffers and layers, and the state of Python's generators.

    A context that restores the attributes at its end.

    Args:
        module: before it is traced.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = {layer: f"{path}." if path else "" for path, layer in module.named_modules()}
        self._made_by_hooks: dict[nn.Module, set[str]] = {}
        self._before = {
            layer: {
                n: copy(value) if type(value) in _CONTAINERS else value for n, value in own_attributes(layer).items()
            }
            for layer in self._layers
        }
        self._seen = self._plain_values()
        self._random = _random_state()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for layer, before in self._before.items():
            for name in own_attributes(layer).keys() - before.keys():
                del vars(layer)[name]
            for name, value in before.items():
                if not _is_same(vars(layer).get(name), value):
                    vars(layer)[name] = value

    def enter(self, layer: nn.Module) -> None:
        """Note the tensors of a layer that its own hooks made just before it runs, as old weight norm's do."""
        made = {name for name, value in vars(layer).items() if isinstance(value, FakeTensor)}
        self._made_by_hooks.setdefault(layer, made)

    def check_tensors(self, given: Iterable[Tensor]) -> None:
        """Refuse a module that keeps a tensor of the trace, except those that its hooks make for each call.

        Args:
            given: its weights and buffers in the trace; a recurrent network keeps a list of them.

        Raises:
            UnsupportedModel: names the attribute.
        """
        known = set(map(id, given))
        for layer, prefix in self._layers.items():
            for name, value in own_attributes(layer).items():
                is_kept = any(id(tensor) not in known for tensor in _traced(value))
                if is_kept and name not in self._made_by_hooks.get(layer, ()):
                    raise UnsupportedModel(
                        prefix + name,
                        "it is a tensor that the module keeps",
                        "return it, or store it in a buffer that is updated in place",
                    )

    def drop_tensors(self) -> None:
        """Restore attributes that hold a tensor of a trace, before another one."""
        for layer, before in self._before.items():
            for name, value in list(own_attributes(layer).items()):
                if name in before and _traced(value):
                    vars(layer)[name] = before[name]

    def change(self) -> str:
        """Return the first attribute that has changed since the last call, or an empty string.

        Raises:
            UnsupportedModel: random numbers were drawn from another generator than torch's.
        """
        if _random_state() != self._random:
            raise UnsupportedModel(
                "the model",
                "it draws random numbers from Python or NumPy, and every step would repeat this one's",
                "draw them with torch, and do not read their values in Python",
            )
        seen, self._seen = self._seen, self._plain_values()
        return next((name for name, value in self._seen.items() if seen.get(name, seen) != value), "")

    def _plain_values(self) -> dict[str, Any]:
        """Return what can be compared: numbers and strings, also in containers, whose other contents count by class."""
        return {
            prefix + name: _compared(value)
            for layer, prefix in self._layers.items()
            for name, value in own_attributes(layer).items()
            if type(value) in (*_CONTAINERS, *_PLAIN)
        }


def own_attributes(owner: object) -> dict[str, Any]:
    """Return an object's attributes except those that torch keeps in every module."""
    return {name: value for name, value in getattr(owner, "__dict__", {}).items() if name not in MODULE_ATTRIBUTES}


def _traced(value: Any) -> list[FakeTensor]:
    """Return the tensors of a trace that an attribute is or holds."""
    leaves = tree_leaves(value) if type(value) in _CONTAINERS else [value]
    return [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]


def _compared(value: Any) -> Any:
    """Return a number or a string, or those of a container's keys and items."""
    if type(value) not in _CONTAINERS:
        return value if type(value) in _PLAIN else type(value)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [(key, _compared(item)) for key, item in items]


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or type(one) not in _CONTAINERS:
        return one is other
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(one[key] is other[key] for key in one)
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _random_state() -> tuple[Any, ...]:
    of_numpy = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 (the generator that modules draw from)
    return random.getstate(), of_numpy["pos"], of_numpy["key"].tobytes()
