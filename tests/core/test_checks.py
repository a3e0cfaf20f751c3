"""Descriptions refuse numbers that no device, cluster or framework can have, before a simulation counts with them."""

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from membench.core import configuration
from membench.core.checks import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, SWITCH, WHOLE, Requirement, check, choice
from membench.core.errors import MembenchError
from membench.core.hardware.cluster import SINGLE_DEVICE
from membench.core.hardware.device import Power
from membench.core.hardware.efficiency import Efficiency
from membench.planning.algorithms import Preference

VALUES: tuple[Any, ...] = (-1, 0, 0.5, 1, 1.5, 2, math.inf, math.nan, True, "1", None)


@pytest.mark.parametrize(
    ("required", "accepted"),
    [
        (WHOLE, [-1, 0, 1, 2]),
        (COUNT, [1, 2]),
        (POSITIVE, [0.5, 1, 1.5, 2, math.inf]),
        (NOT_NEGATIVE, [0, 0.5, 1, 1.5, 2]),
        (FRACTION, [0.5, 1]),
        (SWITCH, [True]),
    ],
)
def test_a_requirement_holds_of_its_values_alone(required: Requirement, accepted: list[Any]) -> None:
    assert [repr(value) for value in VALUES if required.holds(value)] == list(map(repr, accepted))


def test_a_refusal_names_the_first_wrong_value() -> None:
    with pytest.raises(MembenchError, match="^second is a positive number, not 0$"):
        check(POSITIVE, first=1, second=0, third=-1)


def test_a_choice_is_a_member_or_its_value() -> None:
    assert choice(Preference, "algorithms", "memory") is Preference.MEMORY
    assert choice(Preference, "algorithms", Preference.MEMORY) is Preference.MEMORY
    for wrong in ("fast", None, ["memory"]):
        with pytest.raises(MembenchError, match="^algorithms .* is not known.* are: memory, performance$"):
            choice(Preference, "algorithms", wrong)


@pytest.mark.parametrize(
    "described",
    [configuration.load("device", "k40m"), SINGLE_DEVICE, Efficiency(0.5, 0.5), Power(1, 2, 3)],
    ids=lambda described: type(described).__name__,
)
def test_no_number_of_a_description_may_be_negative_or_a_word(described: Any) -> None:
    for field in fields(described):
        if isinstance(getattr(described, field.name), int | float):
            for wrong in (-1, math.nan, "many"):
                with pytest.raises(MembenchError, match=f"^{field.name} is "):
                    replace(described, **{field.name: wrong})


def test_a_rate_beyond_the_peak_is_refused() -> None:
    for wrong in ({"arithmetic": 7}, {"codec": 1.5}, {"convolution": {"fft": 2}}):
        with pytest.raises(MembenchError, match="is a fraction above 0 and at most 1"):
            Efficiency(**{"arithmetic": 0.5, "memory": 0.5, **wrong})
