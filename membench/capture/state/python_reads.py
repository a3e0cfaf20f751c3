"""PythonReads: what a step reads of Python, in places that can be compared from call to call.

The functions that ran in the trace name what they may have read. From the layers, the loss, the arguments and the
functions' global variables, objects are followed by these names: attributes, items of containers, slots, variables of
enclosing functions, keywords of partial functions, and what classes define.
"""

import builtins
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dis import get_instructions
from enum import Enum
from functools import lru_cache, partial
from random import Random
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from membench.capture.state.executed_code import ExecutedCode, is_of_program
from membench.capture.state.places import Places
from membench.capture.state.python_state import own_attributes
from membench.core.libraries.torch_internals import FakeTensor

_MOST_ITEMS = 4096
"""The most items or bytes of one container that are compared at each call."""
_DYNAMIC = frozenset({"getattr", "vars", "__dict__"})
"""Names of what reads attributes by names that the code may compute."""
_DRAWS = frozenset({
    "default_rng", "next", "now", "perf_counter", "randint", "random", "monotonic", "time", "time_ns", "token_bytes",
    "urandom", "uuid4",
})  # fmt: skip
"""Names of functions that return something else at each call."""
_STORES = ("STORE_GLOBAL", "STORE_DEREF")
"""Instructions that change a variable outside of their function."""
_ATOMS = (
    type(None), bool, int, float, complex, str, bytes, range, Enum, np.generic, Tensor, torch.dtype, torch.device,
    torch.layout, torch.memory_format, re.Pattern, slice,
)  # fmt: skip
_DRAWN_FROM = (Iterator, Random, torch.Generator, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_CachedFunction = type(lru_cache(lambda: None))
_NOT_SLOTS = ("__dict__", "__weakref__")
_NOT_COMPUTED_WITH = frozenset({"logging", "threading", "warnings", "weakref"})
"""Modules whose objects only note what happens."""


@final
class PythonReads:
    """Follows objects from where a step may read them.

    Args:
        layers: by path, those of the module and of a loss that is one.
        loss: which may be any callable; None: there is none.
        arguments: what is not a tensor among the arguments, each with its place.
        code: the functions that ran.
        left_out: see `Places`.

    Attributes:
        code: as it was given.
        places: what was found, as it is now.
        uncompared: what cannot be compared, in words.
        may_draw: whether a second run may compute something else, as with an iterator, a clock or a counter.
        kept: objects and lists in which the recording has left tensors, in words. A cache forgets them: dicts of the
            program, and functions with `functools.lru_cache`.
    """

    def __init__(
        self,
        layers: Sequence[tuple[str, nn.Module]],
        loss: Callable[..., Any] | None,
        arguments: Iterable[tuple[str, Any]],
        code: ExecutedCode,
        left_out: Set[tuple[str, Any]] = frozenset(),
    ) -> None:
        self.places = Places(left_out)
        self.uncompared: list[str] = []
        self.kept: list[str] = []
        of_program = code.of_program()
        self.code, self._names = code, code.names
        self._of_program = frozenset(name for each, _ in of_program for name in each.co_names)
        self._is_dynamic = not self._of_program.isdisjoint(_DYNAMIC)
        self.may_draw = not self._of_program.isdisjoint(_DRAWS) or any(
            each.opname in _STORES for of, _ in of_program for each in get_instructions(of)
        )
        self._seen = {id(layer) for _, layer in layers}
        self._kept: list[Any] = []  # so that an identity in `_seen` remains that of its object
        for path, layer in layers:
            self._layer("layer", path, layer)
        if loss is not None:
            self._value("layer", "loss", loss)
        for place, argument in arguments:
            self._value("argument", place, argument)
        for each, variables in of_program:
            self._variables(each, variables)
        if not self._of_program.isdisjoint({"environ", "getenv"}):
            self._environment()
        self.places.remember()

    # ---- objects -----------------------------------------------------------------------------------------

    def _value(self, kind: str, path: str, value: Any) -> None:  # noqa: C901 (a table of types)
        """Follow what a place contains.

        Args:
            kind, path: those of the place, see `_named`.
        """
        if isinstance(value, _ATOMS) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._kept.append(value)
        match value:
            case nn.Module():
                self._layer(kind, path, value)
            case FunctionType():
                self._function(kind, path, value)
            case _CachedFunction():
                self._value(kind, path, value.__wrapped__)
                if getattr(value.__wrapped__, "__code__", None) in self.code.globals_of:
                    value.cache_clear()  # it has run on tensors of the recording
            case MethodType():
                self._value(kind, path, value.__self__)
                self._value(kind, path, value.__func__)
            case partial():
                self._value(kind, path, value.func)
                self._value(kind, _joined(path, "args"), value.args)
                self._value(kind, _joined(path, "keywords"), value.keywords)
            case property():
                self._value(kind, path, value.fget)
            case staticmethod() | classmethod():
                self._value(kind, path, value.__func__)
            case type():
                self._class(value)
            case ModuleType():
                self._module(value)
            case CellType():
                self.places.add(_named(kind, path), value, ("cell_contents",), _of_cell)
                self._value(kind, path, _of_cell(value, "cell_contents", None))
            case list() | tuple() | deque():
                self._sequence(kind, path, value)
            case dict():
                self._mapping(kind, path, value)
            case set() | frozenset():
                self._content(kind, path, value, len(value), partial(frozenset, value))
            case np.ndarray():
                self._content(kind, path, value, value.nbytes, partial(_contents, value))
            case bytearray():
                self._content(kind, path, value, len(value), partial(bytes, value))
            case _:
                self._object(kind, path, value)

    def _layer(self, kind: str, path: str, layer: nn.Module) -> None:
        names = [name for name in own_attributes(layer) if self._may_read(name, type(layer))]
        self._attributes(kind, path, layer, names)

    def _object(self, kind: str, path: str, value: Any) -> None:
        of = type(value)
        if of.__module__.partition(".")[0] in _NOT_COMPUTED_WITH:
            return
        if slots := [name for each in of.__mro__ for name in _slots(each)]:
            self.places.add(_named(kind, path), value, slots, getattr)
            for name in slots:
                self._value(kind, _joined(path, name), getattr(value, name, None))
        has_attributes = isinstance(getattr(value, "__dict__", None), dict)
        if has_attributes:
            self._attributes(kind, path, value, [name for name in vars(value) if self._may_read(name, of)])
        if isinstance(value, _DRAWN_FROM) or not (has_attributes or slots or callable(value)):
            self.uncompared.append(f"{_named(kind, path)}, a {of.__qualname__}")
            self.may_draw = True

    def _attributes(self, kind: str, path: str, value: Any, names: list[str]) -> None:
        holder = vars(value)
        self.places.add(_named(kind, path), holder, sorted(names), is_sized=True)
        for name in names:
            if _is_of_recording(holder[name]):
                self.kept.append(_named(kind, _joined(path, name)))
            self._value(kind, _joined(path, name), holder[name])
        for each in type(value).__mro__:
            self._value("class", each.__qualname__, each)

    def _class(self, of: type) -> None:
        if of.__module__ == "builtins":
            return
        names = [name for name, value in vars(of).items() if name in self._names or _is_operator(name, value)]
        self.places.add(_named("class", of.__qualname__), vars(of), names)
        if is_of_program(of.__module__):
            for name in names:
                self._value("class", f"{of.__qualname__}.{name}", vars(of)[name])

    def _function(self, kind: str, path: str, function: FunctionType) -> None:
        code = function.__code__
        if code not in self.code.globals_of:
            return
        parts = ("__code__", "__defaults__", "__kwdefaults__")
        self.places.add(_named("function", function.__qualname__), function, parts, getattr)
        self._value(kind, path, function.__defaults__)
        self._value(kind, path, function.__kwdefaults__)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._value("variable", f"{function.__qualname__}.{name}", cell)

    # ---- containers --------------------------------------------------------------------------------------

    def _sequence(self, kind: str, path: str, holder: Sequence[Any]) -> None:
        if self._is_too_large(kind, path, len(holder)):
            return
        if not isinstance(holder, tuple):
            self.places.add_items(_named(kind, path), holder)
            self.kept += [_named(kind, path)] * any(map(_is_of_recording, holder))
        for position, item in enumerate(holder):
            self._value(kind, _joined(path, position), item)

    def _mapping(self, kind: str, path: str, holder: dict[Any, Any]) -> None:
        if self._is_too_large(kind, path, len(holder)):
            return
        for key in [key for key, item in dict.items(holder) if _is_of_recording(item)]:
            dict.pop(holder, key)
        self.places.add(_named(kind, path), holder, list(dict.keys(holder)), dict.get)
        self.places.add_items(f"the keys of {_named(kind, path)}", holder, dict.keys)
        for key, item in dict.items(holder):
            self._value(kind, _joined(path, key), item)
        if type(holder) is not dict and vars(type(holder)).get("__dict__"):
            self._object(kind, path, holder)

    def _content(self, kind: str, path: str, value: Any, size: int, read: Callable[[], Any]) -> None:
        if not self._is_too_large(kind, path, size):
            self.places.add_content(_named(kind, path), "content", read)

    def _is_too_large(self, kind: str, path: str, size: int) -> bool:
        if size > _MOST_ITEMS:
            self.uncompared.append(f"{_named(kind, path)}, of {size} items or bytes")
        return size > _MOST_ITEMS

    # ---- variables ---------------------------------------------------------------------------------------

    def _variables(self, code: CodeType, variables: dict[str, Any]) -> None:
        """Follow the global variables that a function names."""
        owner = _named("module", variables.get("__name__", ""))
        names = [name for name in code.co_names if name in variables]
        missing = [name for name in code.co_names if name not in variables and not hasattr(builtins, name)]
        self.places.add(owner, variables, names)
        self.places.add(owner, variables, missing, dict.get)
        for name in names:
            self._value("variable", name, variables[name])

    def _module(self, module: ModuleType) -> None:
        """Follow a module's variables; of one that only computes, compare what the program names."""
        follows = is_of_program(module.__name__)
        names = [name for name in vars(module) if name in (self._names if follows else self._of_program)]
        self.places.add(_named("module", module.__name__), vars(module), names)
        for name in names if follows else ():
            self._value("variable", f"{module.__name__}.{name}", vars(module)[name])

    def _environment(self) -> None:
        strings = {each for of, _ in self.code.of_program() for each in of.co_consts if isinstance(each, str)}
        for name in sorted(strings):
            if name and "\0" not in name:
                self.places.add_content("the environment", name, partial(os.environ.get, name))

    def _may_read(self, name: str, of: type) -> bool:
        """Return whether an attribute of an object of that class may be read."""
        if name in self._names:
            return True
        is_own = is_of_program(of.__module__)
        return self._is_dynamic if is_own else not issubclass(of, nn.Module)


def _is_of_recording(value: Any) -> bool:
    """Return whether a value is a tensor of a recording, or a tuple or list with one."""
    if isinstance(value, tuple | list):
        return any(map(_is_of_recording, value[:_MOST_ITEMS]))
    return isinstance(value, FakeTensor)


def _of_cell(cell: CellType, name: str, missing: Any) -> Any:
    try:
        return getattr(cell, name)
    except ValueError:  # the variable has no value yet
        return missing


def _slots(of: type) -> list[str]:
    slots = vars(of).get("__slots__", ())
    return [each for each in ((slots,) if isinstance(slots, str) else slots) if each not in _NOT_SLOTS]


def _contents(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


def _is_operator(name: str, value: Any) -> bool:
    """Return whether an expression such as ``a + b`` may call what a class has under this name."""
    is_special = name.startswith("__") and name.endswith("__") and name not in _NOT_SLOTS
    return is_special and hasattr(type(value), "__get__")  # and not a note, such as a dataclass's fields


def _joined(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _named(kind: str, path: str) -> str:
    """Return a place in words: ``layer '0.config'``."""
    return f"{kind} {path!r}" if path else "the module"
