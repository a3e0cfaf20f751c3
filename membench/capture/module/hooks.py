"""Hooks of a module in a trace: what they compute is captured; what they do in Python happens once."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from membench.core.libraries.one_thread import Here
from membench.core.libraries.torch_internals import HOOKS_OF_EVERY_MODULE, FakeTensor, module_hooks, tensors_of

_log = logging.getLogger("membench")

_PLACEMENTS = "torch.distributed.tensor"


@contextmanager
def traced_hooks(module: nn.Module, *, runs_own: bool) -> Iterator[None]:
    """Trace the hooks of a module's layers, and log a warning if one is called for nothing but an effect in Python.

    A hook computes if it returns a new value, makes a tensor of its layer anew, or lets its gradient be computed. Hooks
    of the module's own package belong to its forward pass: they may note what it reads later. Those of
    `parallelize_module` return what has other placements then.

    Args:
        runs_own: trace the module's own hooks as well, and at its own call those of every module; otherwise they are
            set aside.
    """
    of_layers = [hooks for layer in module.modules() for hooks in module_hooks(layer)]
    before = [(hooks, dict(hooks)) for hooks in of_layers]
    of_all = [(hooks, dict(hooks)) for hooks in HOOKS_OF_EVERY_MODULE]
    package = type(module).__module__.partition(".")[0]
    without_result: dict[str, None] = {}
    for path, layer in module.named_modules():
        for hooks in module_hooks(layer):
            for key, hook in hooks.items():
                of_package = package != "__main__" and _package_of(hook) == package
                if not (of_package or _module_of(hook).startswith(_PLACEMENTS)):
                    hooks[key] = _noting(hook, path or "the module", without_result)
    for hooks in HOOKS_OF_EVERY_MODULE:
        for key, hook in hooks.items():
            noting = _noting(hook, "every module", without_result)
            hooks[key] = noting if runs_own else _of_others(noting, module)
    if not runs_own:
        for hooks in module_hooks(module):
            hooks.clear()
    try:
        yield
    finally:
        for hooks, earlier in before:
            hooks |= earlier
        for hooks, earlier in of_all:  # another thread may have removed some
            hooks |= {key: hook for key, hook in earlier.items() if key in hooks}
    if without_result:
        _log.warning(
            "hooks return nothing: %s; they were called at the capture, and steps will not call them; remove them, "
            "or return what they read from the module",
            ", ".join(without_result),
        )


def _package_of(hook: Any) -> str:
    return _module_of(hook).partition(".")[0]


def _module_of(hook: Any) -> str:
    module: str = getattr(hook, "__module__", None) or type(hook).__module__
    return module


def _noting(hook: Callable[..., Any], layer: str, without_result: dict[str, None]) -> Callable[..., Any]:
    here = Here()

    def call(of: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not here:
            return hook(of, *args, **kwargs)
        before = _made_tensors(of), [each.requires_grad for each in tensors_of(args)]
        result = hook(of, *args, **kwargs)
        after = _made_tensors(of), [each.requires_grad for each in tensors_of(args)]
        if after == before and (result is None or any(result is each for each in args)):
            without_result[f"{getattr(hook, '__qualname__', type(hook).__qualname__)} of {layer}"] = None
        return result

    return call


def _of_others(hook: Callable[..., Any], excluded: nn.Module) -> Callable[..., Any]:
    return lambda of, *args, **kwargs: None if of is excluded else hook(of, *args, **kwargs)


def _made_tensors(layer: nn.Module) -> dict[str, int]:
    return {name: id(value) for name, value in vars(layer).items() if isinstance(value, FakeTensor)}
