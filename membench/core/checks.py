"""Checks of single values: a wrong one is refused where it is given, and does not end in a wrong result."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Any, TypeVar

from membench.core.errors import MembenchError

E = TypeVar("E", bound=str)


@dataclass(frozen=True)
class Requirement:
    """What a value has to be: in words that follow "is", and as a test of any value whatever."""

    words: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


WHOLE = Requirement("a whole number", _is_whole)
COUNT = Requirement("a positive whole number", lambda value: _is_whole(value) and value > 0)
POSITIVE = Requirement("a positive number", lambda value: _is_number(value) and value > 0)
NOT_NEGATIVE = Requirement(
    "a number and not negative", lambda value: _is_number(value) and isfinite(value) and value >= 0
)
FRACTION = Requirement("a fraction above 0 and at most 1", lambda value: _is_number(value) and 0 < value <= 1)
SWITCH = Requirement("true or false", lambda value: isinstance(value, bool))


def check(required: Requirement, **values: Any) -> None:
    """Refuse values that are not what is required.

    Raises:
        MembenchError: names the first of them, what it has to be, and what it is.
    """
    for name, value in values.items():
        if not required.holds(value):
            raise MembenchError(f"{name} is {required.words}, not {value!r}")


def choice(allowed: Iterable[E], name: str, value: object) -> E:
    """Return the word that a value is, or the member of an enumeration that it is or writes down.

    Raises:
        MembenchError: it is none of them; lists them.
    """
    words = list(allowed)
    for word in words:
        if word == value:
            return word
    raise MembenchError(f"{name} is one of {', '.join(words)}, not {value!r}")


def number(text: str) -> float:
    """Return the number that a text is; where it is none ``nan``, which meets no requirement."""
    try:
        return float(text)
    except ValueError:
        return nan
