"""Classes and functions that options name, and what is known of them before they are called.

A name in a configuration file may be of any function of any installed package, such as `os.system`. Therefore nothing
is called that is not known to make what the option is of.
"""

import sys
from collections.abc import Callable
from inspect import isclass, isfunction
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, get_args, get_type_hints

from membench.core.errors import MembenchError, one_line

_STANDARD = sys.stdlib_module_names
_UNKNOWN = (Any, object)
"""Annotations that do not say what a function returns."""


def find_object(name: Any) -> Callable[..., Any]:
    """Return what a dotted name is of, ``"experiments.vdnn.metrics.step_metrics"``.

    Raises:
        MembenchError: no module that can be imported has it, or it cannot be called.
    """
    module, _, attribute = str(name).rpartition(".")
    try:
        found = resolve_name(f"{module}:{attribute}")
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise MembenchError(
            f"{name} cannot be imported ({one_line(error)}); write package.module.Name of an installed package, or of "
            "one in the current folder"
        ) from error
    if not callable(found):
        raise MembenchError(f"{name} is {type(found).__name__} and cannot be called; name a class or a function")
    made: Callable[..., Any] = found
    return made


def find_target(name: Any, kind: type = object) -> Callable[..., Any]:
    """Return the class or function that a ``_target_`` names, known without a call to make an object of a kind.

    A function is known by its annotation, or, without one, as one of a module that uses torch. With the kind `object`,
    everything counts but what Python's standard library makes.

    Raises:
        MembenchError: it is not known to, or see `find_object`.
    """
    found = find_object(name)
    if not _makes(found, kind):
        what = "an object of a library for tensors" if kind is object else f"an object of class {kind.__name__}"
        raise MembenchError(
            f"{name} is not known to make {what}, and is not called; name that class or one below it, or a function "
            f"that is annotated to return it"
        )
    return found


def find_function(name: Any) -> Callable[..., Any]:
    """Return the function that an option names, which is not one of Python's standard library.

    Raises:
        MembenchError: no module that can be imported has it, or it is none of these.
    """
    try:
        found = find_object(name)
    except MembenchError as error:
        raise MembenchError(f"{name!r} is not a function of any module ({error})") from error
    if isclass(found) or _is_standard(found):
        raise MembenchError(f"{name!r} is not a function for this option; name one of yours, or of membench")
    return found


def _makes(found: Callable[..., Any], kind: type) -> bool:
    if isclass(found):
        return issubclass(found, kind) and not _is_standard(found)
    if not isfunction(found) or _is_standard(found):
        return False
    try:
        annotated = get_type_hints(found).get("return", Any)
    except Exception:  # another library's annotation may name what it does not import
        annotated = Any
    if annotated in _UNKNOWN:
        return _uses_torch(found)
    members = [annotated, *get_args(annotated)]
    return any(isclass(member) and issubclass(member, kind) and not _is_standard(member) for member in members)


def _is_standard(found: Any) -> bool:
    return str(getattr(found, "__module__", None) or "builtins").partition(".")[0] in _STANDARD


def _uses_torch(function: Any) -> bool:
    """Return whether a function's module uses torch, and is not torch, whose functions read and write files."""
    if str(function.__module__).partition(".")[0] == "torch":
        return False
    owners = (
        value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
        for value in function.__globals__.values()
    )
    return any(owner.partition(".")[0] == "torch" for owner in owners)
