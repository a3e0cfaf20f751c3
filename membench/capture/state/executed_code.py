"""The Python code that runs in a trace, and the names by which it reads what is outside of it."""

import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Self

from membench.core.libraries.torch_fake_tensors import TraceMode
from membench.core.libraries.torch_internals import tree_leaves

_NOT_PROGRAMS = frozenset({"membench", "torch", "torchgen", "functorch", "numpy", *sys.stdlib_module_names})
"""Packages whose functions compute from their arguments: their own variables are not a program's settings."""


def is_of_program(module_name: str | None) -> bool:
    """Return whether a module is a program's or of a library of networks, not of Python, NumPy, torch or membench."""
    return (module_name or "").partition(".")[0] not in _NOT_PROGRAMS or module_name == "__main__"


class ExecutedCode:
    """The functions that run in this thread within the context, except while it is paused.

    Attributes:
        globals_of: each function's code, and the global variables that it sees.
    """

    def __init__(self) -> None:
        self.globals_of: dict[CodeType, dict[str, Any]] = {}
        self._noting: Callable[[FrameType, str, Any], None] | None = None

    def __enter__(self) -> Self:
        self._earlier, self._noting = sys.getprofile(), self._note
        sys.setprofile(self._noting)
        return self

    def __exit__(self, *_: object) -> None:
        self._noting = None
        sys.setprofile(None)
        if (enable := getattr(self._earlier, "enable", None)) is not None:
            enable()  # a profiler in C, which cannot be set again as a function
        else:
            sys.setprofile(self._earlier)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what runs within, such as the shape functions of fake tensors."""
        sys.setprofile(None)
        try:
            yield
        finally:
            sys.setprofile(self._noting)

    @property
    def names(self) -> frozenset[str]:
        """Names of attributes and variables in the code, and its strings, which ``getattr`` may be given."""
        codes = self.globals_of
        strings = (each for code in codes for each in tree_leaves(code.co_consts) if isinstance(each, str))
        return frozenset(name for code in codes for name in code.co_names).union(strings)

    def of_program(self) -> list[tuple[CodeType, dict[str, Any]]]:
        """Return the code that is not of Python, NumPy, torch or membench, with its global variables."""
        return [each for each in self.globals_of.items() if is_of_program(each[1].get("__name__"))]

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.globals_of.setdefault(frame.f_code, frame.f_globals)


class PausingMode(TraceMode):
    """A dispatch mode whose own work, and that of modes below it, is not the program's code.

    Args:
        code: is paused meanwhile; None: there is none.
    """

    def __init__(self, code: ExecutedCode | None) -> None:
        super().__init__()
        self._code = code

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._code is None:
            return self._dispatched(func, types, args, kwargs)
        with self._code.paused():
            return self._dispatched(func, types, args, kwargs)

    @abstractmethod
    def _dispatched(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator in place of `__torch_dispatch__`."""
