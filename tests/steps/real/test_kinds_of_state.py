"""Each kind of state that a step reads of Python: changes are noticed at the next call, or draws refused."""

import itertools
import os
import random
import time
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import membench
from membench.core.errors import ModuleChanged, StepOutdated, UnsupportedModel
from tests.helpers.networks.python_state import (
    DATA,
    Held,
    Kind,
    Slotted,
    attribute,
    call_twice,
    module_of,
    plain,
    scaled,
    step_of,
    within,
)

SCALE = 1.0
SETTINGS = {"scale": 1.0}


class Shared:
    """Its attribute is the class's."""

    scale = 1.0


@dataclass
class Options:
    scale: float = 1.0


class Size(Enum):
    SMALL = 1
    LARGE = 2


Pair = namedtuple("Pair", "scale shift")


def doubled(scale: float = 1.0) -> float:
    return 2 * scale


def _counting() -> Callable[[], float]:
    count = 0

    def counted() -> float:
        nonlocal count
        count += 1
        return float(count)

    return counted


def _enclosed() -> tuple[Callable[[], float], Callable[[float], None]]:
    scale = 1.0

    def change(to: float) -> None:
        nonlocal scale
        scale = to

    return lambda: scale, change


def _set_global(scale: float) -> None:
    globals()["SCALE"] = scale


def _set_shared(scale: float) -> None:
    Shared.scale = scale


CHANGES: dict[str, Kind] = {
    "a number": attribute(1.0, 2.0),
    "an integer that becomes a fraction": attribute(1, 1.0, lambda module: float(isinstance(module.held, int))),
    "the sign of zero": attribute(0.0, -0.0, lambda module: float(np.copysign(1.0, module.held))),
    "a number that is hidden": Kind(
        lambda: None, lambda module: getattr(module, "_hidden", 1.0), lambda module: setattr(module, "_hidden", 2.0)
    ),
    "a hidden object": Kind(
        lambda: None, lambda module: module.layer._of, lambda module: setattr(module.layer, "_of", 2.0)
    ),
    "nothing that becomes a number": attribute(None, 2.0, lambda module: module.held or 1.0),
    "a number that becomes nothing": attribute(2.0, None, lambda module: module.held or 1.0),
    "an attribute that is set later": Kind(
        lambda: None, lambda module: getattr(module, "late", 1.0), lambda module: setattr(module, "late", 2.0)
    ),
    "NumPy's number": attribute(np.float64(1.0), np.maximum(np.exp(-0.5), 0.1)),
    "an array in place": within(lambda: np.ones(1), lambda held: float(held[0]), lambda held: held.fill(2.0)),
    "another array": attribute(np.ones(1), np.full(1, 2.0), lambda module: float(module.held[0])),
    "an attribute of an object": within(Held, lambda held: held.scale, lambda held: setattr(held, "scale", 2.0)),
    "another object": attribute(Held(), Held(2.0), lambda module: module.held.scale),
    "an object with slots": within(Slotted, lambda held: held.scale, lambda held: setattr(held, "scale", 2.0)),
    "an object that is called": within(Held, lambda held: held(), lambda held: setattr(held, "scale", 2.0)),
    "a dataclass": within(Options, lambda held: held.scale, lambda held: setattr(held, "scale", 2.0)),
    "a namespace": within(
        lambda: SimpleNamespace(scale=1.0), lambda held: held.scale, lambda held: setattr(held, "scale", 2.0)
    ),
    "an object within objects": within(
        lambda: SimpleNamespace(of=[Held()]),
        lambda held: held.of[0].scale,
        lambda held: setattr(held.of[0], "scale", 2.0),
    ),
    "a member of an enumeration": attribute(Size.SMALL, Size.LARGE, lambda module: module.held.value),
    "a complex number": attribute(1j, 2j, lambda module: abs(module.held)),
    "a dtype": attribute(torch.float32, torch.float16, lambda module: torch.finfo(module.held).bits / 32),
    "a ratio": attribute(Fraction(1), Fraction(2), lambda module: float(module.held)),
    "a named tuple": attribute(Pair(1.0, 0.0), Pair(2.0, 0.0), lambda module: module.held.scale),
    "a range": attribute(range(1), range(2), lambda module: len(module.held)),
    "bytes": attribute(b"1", b"22", lambda module: len(module.held)),
    "bytes in place": within(lambda: bytearray(b"1"), len, lambda held: held.extend(b"2")),
    "a set in place": within(lambda: {1}, len, lambda held: held.add(2)),
    "a queue in place": within(lambda: deque([1.0]), lambda held: held[-1], lambda held: held.append(2.0)),
    "an ordered dict in place": within(
        lambda: OrderedDict(scale=1.0), lambda held: held["scale"], lambda held: held.update(scale=2.0)
    ),
    "a dict with defaults in place": within(
        lambda: defaultdict(float, scale=1.0), lambda held: held["scale"], lambda held: held.update(scale=2.0)
    ),
    "a new key of a dict": within(dict, lambda held: 1.0 + len(held), lambda held: held.update(scale=2.0)),
    "a list that grows": within(lambda: [1.0], len, lambda held: held.append(2.0)),
    "a list of lists": within(lambda: [[1.0]], lambda held: held[0][0], lambda held: held[0].__setitem__(0, 2.0)),
    "another partial function": attribute(
        partial(scaled, scale=1.0), partial(scaled, scale=2.0), lambda module: module.held()
    ),
    "a keyword of a partial function": within(
        lambda: partial(scaled, scale=1.0), lambda held: held(), lambda held: held.keywords.update(scale=2.0)
    ),
    "another function": attribute(scaled, doubled, lambda module: module.held()),
    "the default of a function": within(
        lambda: lambda scale=1.0: scale, lambda held: held(), lambda held: setattr(held, "__defaults__", (2.0,))
    ),
    "a method of another object": attribute(Held().scaled, Held(2.0).scaled, lambda module: module.held()),
    "an attribute of a class": Kind(Shared, lambda module: module.held.scale, lambda _: _set_shared(2.0)),
    "the forward of a layer": Kind(
        lambda: None,
        lambda module: 1.0,
        lambda module: setattr(module.layer, "forward", lambda inputs: 2 * F.linear(inputs, module.layer.weight)),
    ),
    "a variable of the program": Kind(lambda: None, lambda module: SCALE, lambda _: _set_global(2.0)),
    "a dict of the program": Kind(lambda: None, lambda module: SETTINGS["scale"], lambda _: SETTINGS.update(scale=2.0)),
    "the environment": Kind(
        lambda: None,
        lambda module: float(os.environ.get("MEMBENCH_TEST_SCALE", "1")),
        lambda _: os.environ.update(MEMBENCH_TEST_SCALE="2"),
    ),
    "a variable around a function": Kind(
        _enclosed, lambda module: module.held[0](), lambda module: module.held[1](2.0)
    ),
}  # fmt: skip


DRAWS: dict[str, Kind] = {
    "a generator of NumPy": within(lambda: np.random.default_rng(0), lambda held: held.random(), lambda _: None),
    "a generator made at each call": Kind(
        lambda: None, lambda module: np.random.default_rng().random(), lambda _: None
    ),
    "a generator of Python": within(lambda: random.Random(0), lambda held: held.random(), lambda _: None),
    "a clock": Kind(lambda: None, lambda module: time.time_ns() % 1000003 + 1.0, lambda _: None),
    "the system's randomness": Kind(lambda: None, lambda module: 1.0 + os.urandom(8)[0], lambda _: None),
    "an iterator": within(lambda: itertools.count(1), lambda held: float(next(held)), lambda _: None),
    "a counter": within(_counting, lambda held: held(), lambda _: None),
    "a counter in a list": within(
        lambda: [0.0], lambda held: held.__setitem__(0, held[0] + 1) or held[0], lambda _: None
    ),
}  # fmt: skip


STRATEGIES = ["layrub_hybrid", *(pytest.param(each, marks=pytest.mark.slow) for each in ("pytorch", "joint"))]


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    yield
    _set_global(1.0)
    _set_shared(1.0)
    SETTINGS.update(scale=1.0)
    os.environ.pop("MEMBENCH_TEST_SCALE", None)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", CHANGES)
def test_a_step_is_refused_once_something_that_it_reads_has_changed(kind: str, strategy: str) -> None:
    module = module_of(CHANGES[kind])
    step = membench.compile(module, nn.CrossEntropyLoss(), DATA, strategy=strategy)
    assert torch.equal(step(*DATA), plain(module)[0])
    CHANGES[kind].change(module)
    for _ in range(2):
        with pytest.raises(ModuleChanged, match="when the step was captured|attributes"):
            step(*DATA)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", CHANGES)
def test_a_wrapped_module_computes_what_the_module_does_after_any_change(kind: str, strategy: str) -> None:
    module = module_of(CHANGES[kind])
    wrapped = membench.wrap(module, strategy=strategy)
    for changes in (False, False, True, False):
        if changes:
            CHANGES[kind].change(module)
        loss, gradient = plain(module)
        module.zero_grad()
        found = F.cross_entropy(wrapped(DATA[0]), DATA[1])
        found.backward()
        assert torch.equal(found, loss) and torch.equal(module.layer.weight.grad, gradient)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", DRAWS)
def test_what_is_drawn_anew_at_each_call_is_refused(kind: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for make in (step_of, membench.wrap):
        with pytest.raises((UnsupportedModel, StepOutdated)):
            call_twice(make(module_of(DRAWS[kind]), strategy=strategy), monkeypatch)
