"""What a module does in Python beside its arithmetic: a trace sees it done once, and a step would not do it again."""

import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from membench.capture.module_state import OF_EVERY_MODULE, PLAIN
from membench.core.errors import UnsupportedModel

_CONTAINERS = (list, dict, OrderedDict, deque)


class PythonState:
    """The attributes of a module's layers that are neither weights, buffers nor layers, and Python's random numbers.

    Args:
        module: before it is traced.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = {
            layer: (f"{path}." if path else "", vars(layer)) for path, layer in module.named_modules()
        }
        self._made_by_hooks: dict[nn.Module, set[str]] = {}
        self._before = [
            {name: copy(value) if type(value) in _CONTAINERS else value for name, value in own.items()}
            for own in map(_own, self._attributes)
        ]
        self._seen = self._plain_values()
        self._random = _random_state()

    def enter(self, layer: nn.Module) -> None:
        """Note which tensors of a layer its own hooks have made just before it runs, as old weight norm's do."""
        made = {name for name, value in vars(layer).items() if isinstance(value, FakeTensor)}
        self._made_by_hooks.setdefault(layer, made)

    def check_tensors(self, given: Iterable[Tensor]) -> None:
        """Refuse a module that has kept a tensor of the trace, other than what its hooks make for each call.

        Args:
            given: its weights and buffers in the trace, of which a recurrent network keeps a list.

        Raises:
            UnsupportedModel: names the attribute.
        """
        known = set(map(id, given))
        for layer, (prefix, attributes) in self._layers.items():
            for name, value in _own(attributes).items():
                is_kept = any(id(tensor) not in known for tensor in _traced(value))
                if is_kept and name not in self._made_by_hooks.get(layer, ()):
                    raise UnsupportedModel(
                        prefix + name,
                        "it is a tensor that the module keeps",
                        "return it, or hold it in a buffer that changes in place",
                    )

    def change(self) -> str:
        """Return the first attribute that has changed since this was last asked, or an empty string.

        Raises:
            UnsupportedModel: random numbers have been drawn that are not torch's.
        """
        if _random_state() != self._random:
            raise UnsupportedModel(
                "the model",
                "it draws from Python's or NumPy's random numbers, and every step would do what this one has drawn",
                "draw with torch, and without reading what was drawn in Python",
            )
        seen, self._seen = self._seen, self._plain_values()
        return next((name for name, value in self._seen.items() if seen.get(name, seen) != value), "")

    def restore(self) -> None:
        """Let attributes be what they were."""
        for attributes, before in zip(self._attributes, self._before, strict=True):
            for name in _own(attributes).keys() - before.keys():
                del attributes[name]
            for name, value in before.items():
                if not _is_same(attributes.get(name), value):
                    attributes[name] = value

    @property
    def _attributes(self) -> Iterator[dict[str, Any]]:
        return (attributes for _, attributes in self._layers.values())

    def _plain_values(self) -> dict[str, Any]:
        """Return what can be compared: numbers, strings, and how many elements containers have."""
        return {
            prefix + name: len(value) if type(value) in _CONTAINERS else value
            for prefix, attributes in self._layers.values()
            for name, value in _own(attributes).items()
            if type(value) in (*_CONTAINERS, *PLAIN)
        }


@contextmanager
def python_state_kept(module: nn.Module) -> Iterator[PythonState]:
    """Let traces leave nothing in a module's attributes."""
    state = PythonState(module)
    try:
        yield state
    finally:
        state.restore()


def _own(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name not in OF_EVERY_MODULE}


def _traced(value: Any) -> list[FakeTensor]:
    """Return the tensors of a trace that an attribute is or holds."""
    leaves = tree_leaves(value) if type(value) in _CONTAINERS else [value]
    return [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other) or type(one) not in _CONTAINERS:
        return one is other
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(one[key] is other[key] for key in one)
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _random_state() -> tuple[Any, ...]:
    numpys = np.random.get_state(legacy=False)["state"]  # noqa: NPY002 (what modules draw from)
    return random.getstate(), numpys["pos"], numpys["key"].tobytes()
