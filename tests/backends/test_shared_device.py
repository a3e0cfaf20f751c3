"""Kernels share a device: none takes more than is left, none slows an earlier one, all work is done."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.backends.shared_device import SharedDevice

TIMES_S = st.floats(0, 10)
KERNELS = st.lists(st.tuples(TIMES_S, TIMES_S, st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.0])), max_size=8)


def run(kernels: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    device = SharedDevice()
    return [device.run(*kernel) for kernel in kernels]


@given(st.lists(st.tuples(TIMES_S, TIMES_S), max_size=8))
def test_kernels_that_fill_the_device_run_one_after_another(kernels: list[tuple[float, float]]) -> None:
    free_s = 0.0
    for (ready_s, busy_s), (start_s, end_s) in zip(kernels, run([(*each, 1.0) for each in kernels]), strict=True):
        assert start_s == max(free_s, ready_s)
        assert end_s == start_s + busy_s
        free_s = end_s


@given(KERNELS)
def test_a_kernel_starts_in_order_and_takes_at_least_its_time(kernels: list[tuple[float, float, float]]) -> None:
    before_s = 0.0
    for (ready_s, busy_s, _), (start_s, end_s) in zip(kernels, run(kernels), strict=True):
        assert start_s >= max(ready_s, before_s)
        assert end_s >= start_s + busy_s - 1e-9
        before_s = start_s


@given(KERNELS)
def test_no_more_is_done_than_the_device_can(kernels: list[tuple[float, float, float]]) -> None:
    """From any start on, the work of all later kernels takes at least its time at the full rate."""
    spans = run(kernels)
    for position, (start_s, _) in enumerate(spans):
        work_s = sum(busy_s * share for _, busy_s, share in kernels[position:])
        assert max(end_s for _, end_s in spans[position:]) >= start_s + work_s - 1e-6


def test_a_kernel_fills_what_an_earlier_one_leaves() -> None:
    device = SharedDevice()
    assert device.run(0.0, 4.0, 0.75) == (0.0, 4.0)
    start_s, end_s = device.run(1.0, 2.0, 1.0)  # a quarter for three seconds, then all
    assert (start_s, end_s) == (1.0, pytest.approx(4.0 + 2.0 - 0.75))
    assert device.run(2.0, 1.0, 0.5) == (pytest.approx(5.25), pytest.approx(6.25))
