"""Names of devices by their products: what ``torch.cuda.get_device_name()`` and nvidia-smi call them."""

import re
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

from membench.core import configuration
from membench.core.spelling import name_in
from membench.core.units import GIB

_VARIANTS = frozenset({"ti", "super", "laptop", "max", "mobile", "nvl", "d"})
"""Words of a product name that make it another card."""
_LARGEST_GB = 300
"""A larger number in a product name is the host's memory, as in GH200 480GB."""
_TOLERANCE = 0.2
"""By what share a described memory may differ from the round number in a product name."""


def device_named(word: str, own: Path | None = None) -> str:
    """Return the name of the device that a word means, or the word as it is; see `name_in`.

    Args:
        word: also a product name: ``"NVIDIA A100-SXM4-80GB"``.
        own: see `membench.core.configuration.names`.
    """
    known = configuration.names("device", own)
    if (name := name_in("device", word, known)) in known:
        return name
    stated = _stated_bytes(word)
    for name in products(word, known):
        memory_bytes = configuration.read("device", name, own)["memory_bytes"]
        if stated is None or abs(memory_bytes / stated - 1) < _TOLERANCE:
            return name
    return word


def products(product: str, known: Iterable[str]) -> list[str]:
    """Return those of the names of devices that a product name contains, the most exact first."""
    words = [re.sub(r"^sxm\d$", "sxm", word) for word in re.findall(r"[a-z0-9]+", product.lower())]
    written = {"".join(words[start:stop]) for start, stop in combinations(range(len(words) + 1), 2)}
    variants = _VARIANTS & set(words)
    found = [
        name
        for name in known
        if set(name.split("_")) <= written and all(name.endswith(variant) for variant in variants)
    ]
    return sorted(found, key=lambda name: -len(name.split("_")))


def _stated_bytes(product: str) -> int | None:
    """Return the memory that a product name states; None: it states none."""
    sizes = [int(text) for text in re.findall(r"(\d+) ?gb\b", product.lower())]
    return next((size * GIB for size in sizes if size <= _LARGEST_GB), None)
