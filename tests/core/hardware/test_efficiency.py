"""Efficiency: rates of kernels that a program's libraries have."""

from dataclasses import replace

import pytest

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.hardware.efficiency import with_rates

EFFICIENCY = configuration.load("framework", "pytorch").efficiency


def test_other_rates_replace_those_of_their_names() -> None:
    found = with_rates(EFFICIENCY, {"issue_s": 1e-3, "dequantization": 0.5})
    assert found.kernels == replace(EFFICIENCY.kernels, issue_s=1e-3, dequantization=0.5)


def test_rates_are_positive_and_overheads_not_negative() -> None:
    assert with_rates(EFFICIENCY, {"kernel_s": 0}).kernels.kernel_s == 0
    with pytest.raises(MembenchError, match="kernel_s is a number and not negative, not -1e-06"):
        with_rates(EFFICIENCY, {"kernel_s": -1e-6})
    with pytest.raises(MembenchError, match="reduction is a positive number, not 0"):
        with_rates(EFFICIENCY, {"reduction": 0})
    with pytest.raises(MembenchError, match="waits_between_passes"):
        with_rates(EFFICIENCY, {"waits_between_passes": 2})


def test_an_unknown_rate_is_refused() -> None:
    with pytest.raises(MembenchError, match="issue_s"):
        with_rates(EFFICIENCY, {"isue_s": 1e-3})
    with pytest.raises(MembenchError, match="issue_s"):
        with_rates(replace(EFFICIENCY, kernels=None), {"issue_s": 1e-3})
