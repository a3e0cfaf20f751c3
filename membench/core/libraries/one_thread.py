"""Changes of torch and of libraries that only the thread sees that makes them, one capture at a time.

All threads share a library's functions. A capture puts others in their place while it lasts, so captures of several
threads take turns, and a function that was put in another's place runs in the capturing thread alone: other threads get
the original.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getattr_static
from threading import RLock, get_ident
from types import ModuleType
from typing import Any

CAPTURING = RLock()
"""Held during a capture. One for the process, as what captures change is; a capture within a capture takes it again."""

_MISSING = object()


class Here:
    """A condition that holds in the thread that made it, until it has ended; elsewhere it has another value.

    Args:
        here, elsewhere: truth values.
    """

    def __init__(self, *, here: bool = True, elsewhere: bool = False) -> None:
        self._thread, self._here, self._elsewhere = get_ident(), here, elsewhere
        self._has_ended = False

    def __bool__(self) -> bool:
        is_here = not self._has_ended and get_ident() == self._thread
        return self._here if is_here else self._elsewhere

    def end(self) -> None:
        """Be another thread's condition in every thread."""
        self._has_ended = True


def in_this_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs in this thread, and in others does nothing and returns None."""
    here = Here()
    return lambda *args, **kwargs: function(*args, **kwargs) if here else None


@contextmanager
def replaced(owner: Any, name: str, by: Callable[..., Any]) -> Iterator[None]:
    """Let calls by this thread of a function of a module or class run another one.

    What another program puts in its place meanwhile stays there, and finds the original.
    """
    original, here = getattr(owner, name), Here()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (by if here else original)(*args, **kwargs)

    is_static = isinstance(getattr_static(owner, name), staticmethod)
    with attribute(owner, name, staticmethod(chosen) if is_static else chosen):
        try:
            yield
        finally:
            here.end()


@contextmanager
def switched(owner: Any, name: str, *, to: bool) -> Iterator[None]:
    """Let this thread find another truth value in an attribute of a module or class."""
    here = Here(here=to, elsewhere=getattr(owner, name))
    with attribute(owner, name, here):
        try:
            yield
        finally:
            here.end()


@contextmanager
def attribute_here(module: ModuleType, name: str, value: object) -> Iterator[None]:
    """Let this thread find another object in an attribute of a module."""
    here, original, kind = Here(), getattr(module, name), type(module)
    seen = property(lambda _: value if here else original)
    module.__class__ = type(kind.__name__, (kind,), {name: seen, "__module__": kind.__module__})
    try:
        yield
    finally:
        here.end()
        module.__class__ = kind


@contextmanager
def attribute(owner: Any, name: str, value: object) -> Iterator[None]:
    """Set an attribute, which all threads find, and restore it if it is still this one."""
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if vars(owner).get(name) is value:
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
