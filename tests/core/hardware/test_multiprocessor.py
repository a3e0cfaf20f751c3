"""Multiprocessors by compute capability: clocks that follow are the datasheets'."""

import re

import pytest

from membench.core import configuration
from membench.core.configuration import CONF_DIRECTORY
from membench.core.hardware.multiprocessor import multiprocessor_of

CLOCKS = {
    name: int(found[1])
    for name in configuration.names("device")
    if (
        found := re.search(
            r"^arithmetic_ops_per_s: .* x (\d+) MHz", (CONF_DIRECTORY / "device" / f"{name}.yaml").read_text(), re.M
        )
    )
}
"""By device, those that a comment in its file states."""


@pytest.mark.parametrize("name", CLOCKS)
def test_the_clock_of_a_device_follows_from_its_lanes(name: str) -> None:
    assert configuration.load("device", name).clock_hz == pytest.approx(CLOCKS[name] * 1e6, rel=0.01)


def test_many_devices_state_their_clock() -> None:
    assert len(CLOCKS) > 30


def test_multiprocessors_differ_by_architecture() -> None:
    """A T4 has room for half of the threads of others; since the RTX 3090 lanes take all that is issued."""
    threads = {capability: multiprocessor_of(capability).threads for capability in (6.0, 7.5, 8.6, 9.0, None)}
    assert threads == {6.0: 2048, 7.5: 1024, 8.6: 1536, 9.0: 2048, None: 2048}
    issues = {capability: multiprocessor_of(capability).issues for capability in (6.1, 7.0, 8.0, 8.6, 9.0, 10.0)}
    assert issues == {6.1: 2, 7.0: 2, 8.0: 2, 8.6: 1, 9.0: 1, 10.0: 2}
