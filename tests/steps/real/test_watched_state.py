"""What a step reads of Python may change between steps; kinds of state: test_kinds_of_state.py."""

import cProfile
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import membench
from membench.capture.recorded import Recorded
from membench.core.errors import ModuleChanged, ShapeMismatch, StepOutdated, UnsupportedModel
from membench.steps.real import watched_state
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
)


class Filed(nn.Module):
    """Reads a number in a way that no comparison shows."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.layer, self.path = nn.Linear(6, 3), path

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) * float(self.path.read_text())


@pytest.mark.parametrize("make", [step_of, membench.wrap])
def test_a_change_that_no_comparison_shows_is_an_error_at_the_next_recording(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "scale"
    path.write_text("1")
    module = Filed(path)
    step = make(module)
    call_twice(step, monkeypatch)  # the file is as it was
    path.write_text("2")
    with pytest.raises(StepOutdated, match=r"task '.*mul' is another call.* the last \d+ steps may be wrong"):
        call_twice(step, monkeypatch)
    if make is membench.wrap:  # captured anew
        assert torch.equal(step(DATA[0]), module(DATA[0]))
    else:
        with pytest.raises(StepOutdated):
            step(DATA[0])


CACHE: dict[int, Tensor] = {}


@lru_cache
def _cached(size: int) -> Tensor:
    return torch.arange(float(size))


def _in_dict(size: int) -> Tensor:
    if size not in CACHE:
        CACHE[size] = torch.arange(float(size))
    return CACHE[size]


@pytest.mark.parametrize("is_filled", [False, True])
@pytest.mark.parametrize("cached", [_cached, _in_dict])
def test_a_cache_of_the_program_is_neither_a_change_nor_left_with_tensors_of_a_recording(
    cached: Callable[[int], Tensor], is_filled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    CACHE.clear()
    _cached.cache_clear()
    module = module_of(Kind(lambda: cached, lambda module: module.held(3), lambda _: None))
    if is_filled:
        module(DATA[0])
    step = step_of(module)
    for _ in range(2):
        call_twice(step, monkeypatch)
    assert torch.equal(step(DATA[0]), plain(module)[0])


def test_an_object_that_keeps_a_tensor_of_the_first_call_is_refused() -> None:
    def read(module: Any) -> Tensor:
        if module.held.scale is None:
            module.held.scale = torch.ones(3)
        return module.held.scale

    module = module_of(Kind(lambda: Held(None), read, lambda _: None))
    with pytest.raises(UnsupportedModel, match="'held.scale' keeps a tensor that is made at the first call"):
        step_of(module)


def test_recordings_take_a_small_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    step = membench.compile(module_of(attribute(1.0, 2.0)), nn.CrossEntropyLoss(), DATA)
    monkeypatch.setattr(Recorded, "again", lambda recorded: made.append(1) or recorded)
    start_s = time.perf_counter()
    while time.perf_counter() - start_s < 0.5:
        step(*DATA)
    assert len(made) <= 1 + 0.5 * watched_state._SHARE / step.watched._recorded.time_s


def test_a_change_of_what_is_read_but_not_computed_with_is_left_to_time_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = module_of(attribute(1.0, 2.0, lambda module: 2.0 if module.held > 5 else 1.0))
    step = step_of(module)
    expected = step(DATA[0])
    for held in range(10):
        module.zero_grad()
        module.held = held / 4
        assert torch.equal(step(DATA[0]), expected)
    assert "held of the module has changed 8 times while the step stayed the same" in caplog.text


def test_an_equal_number_in_another_object_is_not_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(attribute(np.float64(1.0), None))
    step = step_of(module)
    monkeypatch.setattr(Recorded, "again", None)
    module.held = np.float64(1.0)
    for _ in range(2):
        assert step(DATA[0]).isfinite()


def test_an_annealed_temperature_is_followed() -> None:
    module = module_of(attribute(1.0, 2.0, lambda module: 1 / module.held))
    wrapped = membench.wrap(module, strategy="layrub_hybrid")
    for step in range(3):
        module.held = np.maximum(np.exp(-step * 0.5), 0.1)
        assert torch.equal(wrapped(DATA[0]), module(DATA[0]))


class Called(nn.Module):
    """A layer times what an argument holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs: Tensor, held: Any) -> Tensor:
        return self.layer(inputs) * (held() if callable(held) else held.scale)


@dataclass(eq=False)
class Compared:
    scale: float


@pytest.mark.parametrize("kind", [Held, Slotted, Compared, partial])
def test_an_argument_that_is_an_object_may_change(kind: Any) -> None:
    held = partial(scaled, scale=1.0) if kind is partial else kind(scale=1.0)
    module = Called()
    wrapped, step = (membench.wrap(module), membench.compile(module, lambda out: out.sum(), ((DATA[0], held), ())))
    for scale in (1.0, 2.0):
        if kind is partial:
            held.keywords["scale"] = scale
        else:
            held.scale = scale
        assert torch.equal(wrapped(DATA[0], held), module(DATA[0], held))
    with pytest.raises((ModuleChanged, ShapeMismatch)):
        step((DATA[0], held))


class Signed(nn.Module):
    """Adds the sign of an argument."""

    def forward(self, inputs: Tensor, held: float) -> Tensor:
        return inputs + math.copysign(1.0, held)


def test_zeros_of_two_signs_are_two_arguments() -> None:
    wrapped = membench.wrap(Signed())
    for held in (0.0, -0.0, 0.0, math.nan, math.nan):
        assert torch.equal(wrapped(DATA[0], held), Signed()(DATA[0], held))
    assert len(wrapped.wrapped_calls.steps) == 3


def test_a_keyword_of_a_loss_may_not_change() -> None:
    loss = partial(F.cross_entropy, label_smoothing=0.0)
    step = membench.compile(nn.Linear(6, 3), loss, DATA)
    step(*DATA)
    loss.keywords["label_smoothing"] = 0.5
    with pytest.raises(ModuleChanged, match="label_smoothing=0.5, but had 0.0"):
        step(*DATA)


def test_a_profiler_goes_on_after_a_capture() -> None:
    profiler = cProfile.Profile()
    with profiler:
        membench.compile(nn.Linear(6, 3), nn.CrossEntropyLoss(), DATA)
        scaled()
    assert sys.getprofile() is None
    assert any(getattr(each.code, "co_name", "") == "scaled" for each in profiler.getstats())
