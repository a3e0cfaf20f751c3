"""Collectives refuse what cannot be passed."""

import pytest

from membench.core.errors import MembenchError
from membench.core.graph.collective import Collective, CollectiveKind


@pytest.mark.parametrize(
    ("size_bytes", "axis", "message"),
    [(-1, "dp", "size_bytes is a number and not negative"), (8, "", "axis is a name")],
)
def test_a_size_below_zero_and_an_axis_without_a_name_are_refused(size_bytes: int, axis: str, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        Collective(CollectiveKind.ALL_GATHER, size_bytes, axis)
