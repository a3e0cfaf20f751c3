"""A machine, and what each of several ranks has of it."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.errors import MembenchError
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.machine import Machine

SIZES = st.integers(min_value=4096, max_value=10**15)
RATES = st.floats(min_value=1e6, max_value=1e15)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    disk = (draw(SIZES), draw(RATES), draw(RATES)) if draw(st.booleans()) else (None, None, None)
    return Machine("any", draw(SIZES), draw(RATES), *disk)


@given(machine=machines(), ranks=st.integers(min_value=1, max_value=64))
def test_the_shares_of_all_ranks_are_no_more_than_the_machine(machine: Machine, ranks: int) -> None:
    share = machine.share_of(ranks)
    assert share.ranks == ranks and share.name == machine.name
    for field in fields(Machine):
        whole, part = getattr(machine, field.name), getattr(share, field.name)
        if field.name in ("name", "ranks"):
            continue
        if whole is None:
            assert part is None
        elif isinstance(whole, int):
            assert 0 <= whole - part * ranks < ranks
        else:
            assert part * ranks == pytest.approx(whole)
    assert Cluster(hosts=3, devices_per_host=ranks).share_of(machine) == share
    assert machine.share_of(1) == machine


@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_a_machine_without_memory_is_refused(value: float) -> None:
    with pytest.raises(MembenchError, match="memory_bytes is a positive whole number"):
        Machine("none", value, 1e9)  # type: ignore[arg-type]
