"""Numbers as the pages print them, with their unit; the tables keep every digit."""

from decimal import Decimal

_DIGITS = 4
"""The largest count of significant digits of a number of ours."""


def format_exact(value: str, unit: str) -> str:
    """Return a number with all its digits, ``"191,760 s"``; empty for an empty one."""
    return _with_unit(Decimal(value), unit) if value else ""


def format_rounded(value: str, unit: str, *, papers: str = "") -> str:
    """Return a number of ours with digits comparable with the paper's: 46.0225 next to 70 is ``"46.0 %"``.

    That is one digit more than the paper's number has, in total and after the point, but two to four; digits before the
    point stay. A number that is off by 5 % or more therefore never looks like the paper's.

    Args:
        papers: the paper's number; empty if it prints none.
    """
    if not value:
        return ""
    ours = Decimal(value)
    if not ours:
        return _with_unit(ours, unit)
    place = max(_place(ours, Decimal(papers) if papers else None), last_place(ours))
    return _with_unit(ours.quantize(Decimal(1).scaleb(place)), unit)


def _place(ours: Decimal, stated: Decimal | None) -> int:
    """Return the place to which a number is rounded, as a power of ten."""
    if stated is None:
        return min(0, ours.adjusted() + 1 - _DIGITS)
    digits = min(len(stated.as_tuple().digits) + 1, _DIGITS)
    place = max(ours.adjusted() + 1 - digits, last_place(stated) - 1)
    return min(0, place, ours.adjusted() - 1)


def last_place(number: Decimal) -> int:
    """Return the place of a number's last digit, as a power of ten."""
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int), f"{number} is not finite"
    return exponent


def _with_unit(number: Decimal, unit: str) -> str:
    return f"{number:,f} {unit}".strip()
