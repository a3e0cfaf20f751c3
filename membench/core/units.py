"""Constants, parsing and formatting of bytes and seconds.

Inside the package every quantity is a plain number whose name ends in its unit (`size_bytes`, `step_time_s`); only this
module converts. ``KB``/``MB``/``GB`` are powers of 1024, as in the papers (Layrub's 759.5 MB is exactly 31 x 24.5 MiB),
in what is read and in what is printed; ``KiB``/``MiB``/``GiB`` are the same.
"""

import re
from math import inf

KIB, MIB, GIB = 1024, 1024**2, 1024**3
ROUNDS_TO_ONE = 0.9995
"""Of a unit: from here on three digits are a whole one."""
_PREFIXES = ("", "k", "m", "g", "t")

PRINTED_UNITS = {"MB": MIB, "GB": GIB, "s": 1, "ms": 1e-3, "%": 1, "x": 1, "images": 1, "W": 1}
"""Printed units in membench's own (bytes, seconds, watts, plain numbers); a paper's file adds others."""


def parse_bytes(text: str | float) -> int:
    """Return the bytes of ``"12 GB"``, ``"200MB"``, ``"200 MiB"``, ``"4096"``, ``"1e9"``, 4096 or 1e9.

    ``MB`` and ``MiB`` are both 1024 x 1024 bytes; a number without a unit is of bytes.

    Raises:
        ValueError: the text is not a size, or the size is not positive, or not a whole number of bytes without a unit.
    """
    match = re.fullmatch(r"\s*([0-9]+\.?[0-9]*(?:e\+?[0-9]{1,2})?|\.[0-9]+)\s*(?:b|([kmgt])i?b)?\s*", str(text).lower())
    if match is None:
        raise ValueError(
            f"{text!r} is not a size; write it as '12 GB', '200 MB' (1 MB is 1024 x 1024 bytes) or a number of bytes"
        )
    number, prefix = match.groups(default="")
    if not prefix and not float(number).is_integer():
        raise ValueError(f"{text!r} is not a whole number of bytes; add the unit that you mean, as in '{number} GB'")
    size_bytes = round(float(number) * 1024 ** _PREFIXES.index(prefix))
    if size_bytes <= 0:
        raise ValueError(f"{text!r} is not a positive size")
    return size_bytes


def per_second(amount: float, time_s: float) -> float:
    """Return an amount per second; infinite if it takes no time, as a step without operators does."""
    return amount / time_s if time_s else inf


def format_bytes(size_bytes: float) -> str:
    """Return a size for a person: ``"759.5 MB"`` (1 MB is 1024 x 1024 bytes)."""
    for unit, multiplier in (("GB", GIB), ("MB", MIB), ("KB", KIB)):
        if abs(size_bytes) >= multiplier:
            return f"{size_bytes / multiplier:,.1f} {unit}"
    return f"{size_bytes:,.0f} B"


def format_seconds(time_s: float) -> str:
    """Return a duration for a person: ``"1.24 s"``, ``"35.6 ms"``, ``"12.0 us"``."""
    for unit, multiplier in (("s", 1.0), ("ms", 1e-3)):
        if abs(time_s) >= multiplier * ROUNDS_TO_ONE:
            return f"{time_s / multiplier:.3g} {unit}" if time_s < 1000 else f"{time_s:,.0f} s"
    return f"{time_s / 1e-6:.1f} us"
