"""A module that shares the attributes of another one, and whose calls run elsewhere."""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from types import MethodType
from typing import Any, NoReturn, Protocol, TypeVar

import torch
from torch import nn

from membench.core.errors import MembenchError

Module = TypeVar("Module", bound=nn.Module)


class Calls(Protocol):
    """What runs the calls of a module."""

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any: ...

    def of(self, module: nn.Module) -> "Calls":
        """Return the same for a copy of the module."""


class _Forward:
    """The attribute ``forward`` of wrapped modules, which a program may replace (accelerate puts autocast around it).

    It takes precedence over the dict of attributes, which is that of the module that was wrapped as well: a replaced
    forward would be captured from there.

    Attributes:
        replaced: what the program has put in its place; None if nothing.
    """

    def __init__(self, captured: Callable[..., Any]) -> None:
        @wraps(captured)
        def forward(wrapped: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapped.wrapped_calls(args, kwargs)

        vars(forward)["__signature__"] = inspect.signature(captured)
        del vars(forward)["__wrapped__"]  # accelerate follows it, to a forward without the strategy
        self._forward = forward
        self.replaced: Any = None

    def __get__(self, wrapped: nn.Module | None, _: object = None) -> Any:
        if wrapped is None:
            return self._forward
        return self.replaced or MethodType(self._forward, wrapped)

    def __set__(self, _: nn.Module, forward: Any) -> None:
        self.replaced = forward

    def __delete__(self, _: nn.Module) -> None:
        if self.replaced is None:
            raise AttributeError("forward")
        self.replaced = None


def _nothing_to_compile(_: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Compile nothing, in place of `nn.Module.compile`: to torch.compile a wrapped module's call is a graph break."""


def _refuse_pickle(*_: object) -> NoReturn:
    raise MembenchError(
        "a wrapped module cannot be pickled: it is bound to this process; save its state_dict(), or the module that "
        "was wrapped"
    )


def _refuse_script(_: object) -> NoReturn:
    raise MembenchError(
        "a wrapped module cannot be scripted: it runs by a schedule; script the module that was wrapped"
    )


def sharing_attributes(module: Module, calls: Calls) -> Module:
    """Return an object of a subclass of the module's class that has the module's own dict of attributes.

    Args:
        calls: run its calls; the object has them as its attribute ``wrapped_calls``.
    """
    kind = type(module)
    forward = _Forward(kind.forward)

    def deep_copy(wrapped: nn.Module, memo: dict[int, Any]) -> nn.Module:
        copied = copy.deepcopy(module, memo)
        if id(wrapped) in memo:  # one of its attributes refers to it, as a method that accelerate keeps
            again: nn.Module = memo[id(wrapped)]
            return again
        again = memo[id(wrapped)] = sharing_attributes(copied, calls.of(copied))
        if forward.replaced:
            again.forward = copy.deepcopy(forward.replaced, memo)
        return again

    attributes = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "forward": forward,
        "compile": _nothing_to_compile,
        "__call__": torch.compiler.disable(kind.__call__, reason="it runs under a schedule of membench"),
        "__deepcopy__": deep_copy,
        "__reduce_ex__": _refuse_pickle,
        "__prepare_scriptable__": _refuse_script,
        "wrapped_calls": calls,
    }
    metaclass: Any = type(kind)
    wrapped: Module = object.__new__(metaclass(kind.__name__, (kind,), attributes))
    object.__setattr__(wrapped, "__dict__", vars(module))
    return wrapped
