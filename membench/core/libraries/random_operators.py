"""Operators that read and set the state of torch's random generator, so that a step draws the same numbers twice."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from membench.core.libraries.one_thread import Here, attribute, attribute_here

DEFAULT_GENERATOR = torch.default_generator
"""The CPU's, also where a trace finds another object of this name in torch."""

READ_STATE = "membench.random_state.default"
SET_STATE = "membench.set_random_state.default"
"""Names of the operators, as a `Call` has them."""


def random_state(device_type: str) -> Tensor:
    """Return the state of the default generator of the current device of a type, as bytes in host memory."""
    return DEFAULT_GENERATOR.get_state() if device_type == "cpu" else _device(device_type).get_rng_state()


def set_random_state(state: Tensor, device_type: str) -> None:
    """Set it; see `random_state`."""
    if device_type == "cpu":
        DEFAULT_GENERATOR.set_state(state)
    else:
        _device(device_type).set_rng_state(state)


def forked_random_state(device: torch.device) -> AbstractContextManager[None]:
    """Return a context that restores the state of the CPU's generator and, on another device, of that one's."""
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=[device], device_type=device.type)


@contextmanager
def default_generator_seen_as(methods: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let this thread find other methods of torch's default generator, whose state stays the program's."""
    seen = _Seen(methods)
    try:
        with attribute(torch.random, "default_generator", seen), attribute_here(torch, "default_generator", seen):
            yield
    finally:
        seen.end()


class _Seen(Here):
    """The default generator, with other methods in the thread that made it."""

    def __init__(self, methods: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__()
        self._methods = methods

    def __getattr__(self, name: str) -> Any:
        return self._methods[name] if self and name in self._methods else getattr(DEFAULT_GENERATOR, name)


def _device(device_type: str) -> Any:
    return torch.get_device_module(device_type)


_LIBRARY = torch.library.Library("membench", "DEF")
_LIBRARY.define("random_state(str device_type) -> Tensor")
_LIBRARY.define("set_random_state(Tensor state, str device_type) -> ()")
_LIBRARY.impl("random_state", random_state, "CompositeExplicitAutograd")
_LIBRARY.impl("set_random_state", set_random_state, "CompositeExplicitAutograd")
