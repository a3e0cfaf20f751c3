"""Functions and modules given to `torch.compile`: in a trace they run, and are recorded, as if they were not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from typing import Any, NoReturn

from torch import nn

from membench.core.errors import UnsupportedModel
from membench.core.libraries.torch_contexts import compiled_calls_noted
from membench.core.step.kernels import Compiled
from membench.core.step.workload import Workload

_KERNELS = frozenset({"torch.nn.attention.flex_attention"})
"""Modules of functions that are one kernel each, which torch makes by compiling them."""


@contextmanager
def compiled_functions_refused(workload: Workload, layer_name: Callable[[], str]) -> Iterator[None]:
    """Refuse compiled functions and modules that are called within a trace, also those that fail in it.

    Args:
        workload: its `Workload.compiled` are not refused.
        layer_name: returns the name of the layer that is running.

    Raises:
        UnsupportedModel: names the layer of the first call.
    """
    paths = {id(layer): path for path, layer in workload.module.named_modules()}
    found: list[tuple[str, str]] = []

    def note(function: Callable[..., Any]) -> None:
        if getattr(function, "__module__", "") in _KERNELS:
            return
        given = unwrap(function)
        given = getattr(given, "__self__", given)  # a method of the module
        is_module = isinstance(given, nn.Module)
        name = type(given).__name__ if is_module else getattr(given, "__qualname__", repr(given))
        layer = paths.get(id(given), layer_name())
        if not _is_known(workload.compiled, layer):
            found.append((layer, name))

    with compiled_calls_noted(note):
        try:
            yield
        except Exception as error:
            if found:
                refuse_compiled(*found[0], error)
            raise
    if found:
        refuse_compiled(*found[0])


def _is_known(compiled: Compiled | None, layer: str) -> bool:
    return compiled is not None and (compiled.around(layer) is not None or (compiled.loss and layer == "loss"))


def refuse_compiled(layer: str, name: str, error: Exception | None = None) -> NoReturn:
    """Refuse a function or module of that name."""
    raise UnsupportedModel(
        layer,
        f"{name} was given to torch.compile, and only compiled modules and losses are predicted; none runs under a "
        f"method",
        "pass the module as it was before (its _orig_mod), or leave torch.compile out; what a library compiles runs "
        "without it within torch.compiler.set_stance('force_eager')",
    ) from error
