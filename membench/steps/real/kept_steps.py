"""KeptSteps: captured steps by the shapes of their arguments, made on first use, and a bounded number of them."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from torch import Tensor

from membench.core.errors import MembenchError
from membench.core.step.arguments import is_dense, named_leaves

MOST_KEPT = 32
"""The most steps that are kept of one module."""

_log = logging.getLogger("membench")


class Shapes(StrEnum):
    """Whether calls may have other shapes than the first one."""

    FIXED = "fixed"
    ANY = "any"


class Closable(Protocol):
    """A step that holds threads or host memory."""

    def close(self) -> None:
        """Release them."""


def kind_of(leaf: Any, *, with_gradient: bool = False) -> Hashable:
    """Return what a capture depends on in one leaf of the arguments.

    Args:
        with_gradient: it depends on whether the leaf requires a gradient.

    Raises:
        MembenchError: the leaf cannot be compared from call to call.
    """
    if not isinstance(leaf, Tensor):
        try:
            hash(leaf)
        except TypeError as error:
            raise MembenchError(
                f"an argument cannot be compared from call to call ({error}); pass tensors, numbers and strings, or "
                "tuples, lists and dicts of them"
            ) from error
        # zero has two signs, and what is not a number does not equal itself
        return type(leaf), repr(leaf) if isinstance(leaf, float | complex | np.inexact) else leaf
    if not is_dense(leaf):
        return leaf.layout, leaf.is_nested  # refused by the capture
    return leaf.dtype, leaf.shape, leaf.stride(), leaf.device, with_gradient and leaf.requires_grad


def described(name: str, arguments: Any) -> str:
    """Return the shapes, dtypes and values of a call's arguments, for a sentence."""
    return ", ".join(f"{place} {_described_leaf(leaf)}" for place, leaf in named_leaves(name, arguments))


def _described_leaf(leaf: Any) -> str:
    if isinstance(leaf, Tensor) and is_dense(leaf):
        return f"{tuple(leaf.shape)} {str(leaf.dtype).removeprefix('torch.')}"
    return repr(leaf)


Step = TypeVar("Step", bound=Closable)


class KeptSteps(Generic[Step]):
    """Steps by what they were captured for; the one that was used the longest ago makes room for another."""

    def __init__(self) -> None:
        self._steps: OrderedDict[Hashable, Step] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps.values())

    def find(self, key: Hashable) -> Step | None:
        """Return the step of a key, if it is kept."""
        if key not in self._steps:
            return None
        self._steps.move_to_end(key)
        return self._steps[key]

    def make(self, key: Hashable, capture: Callable[[], Step], what: str) -> Step:
        """Capture a step, keep it and log a sentence.

        Args:
            what: the call, for the sentence.
        """
        start_s = time.perf_counter()
        step = self._steps[key] = capture()
        time_s = time.perf_counter() - start_s
        _log.info(
            "captured and planned %s in %.2f s; %d of at most %d steps are kept",
            what, time_s, min(len(self), MOST_KEPT), MOST_KEPT,
        )  # fmt: skip
        if len(self) > MOST_KEPT:
            self._steps.popitem(last=False)[1].close()
        return step

    def put(self, key: Hashable, step: Step) -> None:
        """Keep a step that has been captured already."""
        self._steps[key] = step

    def clear(self) -> None:
        """Close every step and forget it."""
        while self._steps:
            self._steps.popitem()[1].close()
