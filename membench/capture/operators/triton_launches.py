"""Launches of Triton's kernels in a trace: operators, which a step runs and a simulation prices by their bytes.

A launch, ``kernel[grid](*arguments)``, reaches no dispatcher, and has to have memory. Each distinct one becomes an
operator of the library ``triton`` whose arguments are its tensors; the kernel, the grid and the other arguments belong
to the operator.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from membench.capture.operators.triton_source import Accesses, accesses, python_function
from membench.core.errors import MembenchError
from membench.core.libraries.one_thread import replaced
from membench.core.libraries.torch_internals import FakeTensor

_LIBRARY = torch.library.Library("triton", "FRAGMENT")
_UNREAD: dict[str, tuple[int, ...]] = {}
"""By operator, the positions of tensors that a kernel writes without reading them."""
_operators: dict[Any, Callable[..., None]] = {}
_accesses: dict[Callable[..., Any], Accesses] = {}

_RUNTIME = "triton.runtime.jit"


def unread_arguments(operator: str) -> tuple[int, ...]:
    """Return the positions of tensors that a launch writes without reading them; other operators have none."""
    return _UNREAD.get(operator, ())


@contextmanager
def recorded_launches() -> Iterator[None]:
    """Replace launches on tensors without data by operators; a program that has not imported Triton has none."""
    runtime = sys.modules.get(_RUNTIME)
    if runtime is None:
        yield
        return
    kernels = runtime.KernelInterface
    launch = kernels.__getitem__

    def recorded(kernel: Any, grid: Any) -> Callable[..., Any]:
        return partial(_launch, partial(launch, kernel), kernel, grid)

    with replaced(kernels, "__getitem__", recorded):
        yield


@dataclass(frozen=True)
class _Launch:
    """A launch without its tensors.

    Attributes:
        at: returns a launcher for a grid.
        names: names of the tensors among the arguments.
        others: the other arguments, by name.
    """

    at: Callable[[Any], Callable[..., Any]]
    kernel: Any
    grid: Any
    names: tuple[str, ...]
    others: dict[str, Any]

    @property
    def key(self) -> Any:
        """Equal for launches that do the same on equal tensors."""
        return id(self.kernel), _constant(self.grid), self.names, _constant(self.others)

    def run(self, *tensors: Tensor) -> None:
        self.at(self.grid)(**dict(zip(self.names, tensors, strict=True)), **self.others)


def _launch(at: Callable[[Any], Any], kernel: Any, grid: Any, *args: Any, **kwargs: Any) -> Any:
    given = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    tensors = {name: each for name, each in given.items() if isinstance(each, Tensor)}
    if not any(isinstance(each, FakeTensor) for each in tensors.values()):
        return at(grid)(*args, **kwargs)
    others = {name: each for name, each in given.items() if name not in tensors}
    launch = _Launch(at, kernel, grid, tuple(tensors), others)
    function = python_function(kernel)
    assert function is not None
    if not _runs_on_cpu(kernel) and any(each.device.type == "cpu" for each in tensors.values()):
        raise MembenchError(
            f"Triton's kernel {function.__name__} runs on a GPU alone; predict the step there (membench.predict), or "
            "run it without such kernels"
        )
    if launch.key not in _operators:
        _operators[launch.key] = _registered(launch, function)
    return _operators[launch.key](*tensors.values())


def _runs_on_cpu(kernel: Any) -> bool:
    """Return whether Triton interprets the kernel (TRITON_INTERPRET=1)."""
    return type(kernel).__name__ == "InterpretedFunction"


def _registered(launch: _Launch, function: Callable[..., Any]) -> Callable[..., None]:
    """Return a new operator that launches, an overload of one with the kernel's name."""
    if function not in _accesses:
        _accesses[function] = accesses(function)
    found, overload = _accesses[function], f"launch{len(_operators)}"
    parameters = [
        f"Tensor({chr(ord('a') + at)}!) {name}" if name in found.writes else f"Tensor {name}"
        for at, name in enumerate(launch.names)
    ]
    _LIBRARY.define(f"{function.__name__}.{overload}({', '.join(parameters)}) -> ()")
    name = f"{function.__name__}.{overload}"
    _LIBRARY.impl(name, launch.run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"triton::{name}", lambda *_: None, lib=_LIBRARY)
    _UNREAD[f"triton.{name}"] = tuple(at for at, each in enumerate(launch.names) if each in found.writes - found.reads)
    operator: Callable[..., None] = getattr(getattr(torch.ops.triton, function.__name__), overload)
    return operator


def _constant(value: Any) -> Any:
    """Return what stands for a value in a key: of a grid that is computed, its code and what it refers to."""
    if isinstance(value, FunctionType):
        cells = tuple(cell.cell_contents for cell in value.__closure__ or ())
        return value.__code__, _constant(cells), _constant(value.__defaults__)
    if isinstance(value, tuple | list):
        return tuple(map(_constant, value))
    if isinstance(value, dict):
        return tuple((name, _constant(each)) for name, each in value.items())
    return type(value), value if isinstance(value, int | float | str | None) else repr(value)
