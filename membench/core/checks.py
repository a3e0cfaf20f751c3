"""Checks of single values, so that an invalid one is refused where it is given."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isfinite, isnan, nan
from typing import Any, TypeVar

from membench.core.errors import MembenchError, unknown

E = TypeVar("E", bound=str)


@dataclass(frozen=True)
class Requirement:
    """A condition on a value: a description that follows "is", and a test that accepts values of any type."""

    description: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


MOST = 2**63
"""From here on a whole number is none of torch's."""

WHOLE = Requirement("a whole number", _is_whole)
COUNT = Requirement("a positive whole number", lambda value: _is_whole(value) and 0 < value < MOST)
POSITIVE = Requirement("a positive number", lambda value: _is_number(value) and value > 0)
NOT_NEGATIVE = Requirement(
    "a number and not negative", lambda value: _is_number(value) and isfinite(value) and value >= 0
)
FRACTION = Requirement("a fraction above 0 and at most 1", lambda value: _is_number(value) and 0 < value <= 1)
SHARE = Requirement("a share from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
BELOW_ONE = Requirement("a fraction from 0 to below 1", lambda value: _is_number(value) and 0 <= value < 1)
NAME = Requirement(
    "a name of printable characters", lambda value: isinstance(value, str) and value != "" and value.isprintable()
)
SWITCH = Requirement("true or false", lambda value: isinstance(value, bool))


def check(required: Requirement, **values: Any) -> None:
    """Refuse values that do not meet a requirement.

    Raises:
        MembenchError: names the first such value, the requirement, and the value.
    """
    for name, value in values.items():
        if not required.holds(value):
            limit = "; it has at most 63 bits" if _is_whole(value) and value >= MOST else ""
            raise MembenchError(f"{name} is {required.description}, not {value!r}{limit}")


def choice(allowed: Iterable[E], name: str, value: object) -> E:
    """Return the allowed string, or enumeration member, that equals a value, in any case.

    Raises:
        MembenchError: the value is not allowed; lists those that are.
    """
    choices = list(allowed)
    for each in choices:
        if each == value or str(value).lower() == each.lower():
            return each
    raise MembenchError(unknown(name, value, choices))


def number(text: str) -> float:
    """Return a text as a number; ``nan``, which fails every requirement, if it is not one."""
    try:
        return float(text)
    except ValueError:
        return nan
