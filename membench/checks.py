"""Checks of single values: a wrong one is refused where it is given, and does not end in a wrong result."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Any

from membench.errors import MembenchError


@dataclass(frozen=True)
class Kind:
    """What a value has to be: in words that follow "is", and as a test of any value whatever."""

    words: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


WHOLE = Kind("a whole number", _is_whole)
COUNT = Kind("a positive whole number", lambda value: _is_whole(value) and value > 0)
POSITIVE = Kind("a positive number", lambda value: _is_number(value) and value > 0)
NOT_NEGATIVE = Kind(
    "a number and not negative", lambda value: _is_number(value) and isfinite(value) and value >= 0
)
FRACTION = Kind("a fraction above 0 and at most 1", lambda value: _is_number(value) and 0 < value <= 1)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))


def check(kind: Kind, **values: Any) -> None:
    """Refuse values that are not of a kind.

    Raises:
        MembenchError: names the first of them, what it has to be, and what it is.
    """
    for name, value in values.items():
        if not kind.holds(value):
            raise MembenchError(f"{name} is {kind.words}, not {value!r}")


def number(text: str) -> float:
    """Return the number that a text is; where it is none ``nan``, which is of no kind."""
    try:
        return float(text)
    except ValueError:
        return nan
