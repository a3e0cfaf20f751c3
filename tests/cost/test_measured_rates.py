"""Rates of kernels that wait for their own instructions: medians of operators that were measured on an H200."""

import csv
import re
from collections.abc import Callable, Iterator
from statistics import median

import pytest

from membench.core import configuration
from membench.core.configuration import ROOT
from membench.core.hardware.efficiency import KernelRates

RATES: KernelRates = configuration.load("framework", "pytorch").efficiency.kernels
MULTIPROCESSORS = configuration.load("device", "h200").multiprocessors
LONG_US = 20
"""Of operators that are counted: shorter ones are mostly the start of a kernel."""
FEW, MANY = 96, 256
"""Channels, each with a thread block: fewer leave multiprocessors idle, and more keep all of them busy."""
PASSES = {
    **dict.fromkeys(("native_batch_norm", "cudnn_batch_norm"), 3 / 2),
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward", "native_layer_norm_backward"), 5 / 3),
}

Row = dict[str, str]


def rows_of(operator: str, *, wanted: Callable[[int], bool] = lambda channels: True) -> Iterator[Row]:
    with (ROOT / "results" / "operators" / "nvidia_h200.csv").open() as file:
        for row in csv.DictReader(file):
            is_long = float(row["time_us"]) >= LONG_US
            if row["operator"].split(".")[0] == operator and is_long and wanted(channels_of(row)):
                yield row


def channels_of(row: Row) -> int:
    found = re.search(r"\[\d+,(\d+)", row["arguments"])
    assert found
    return int(found[1])


def bytes_per_s(operator: str, row: Row) -> float:
    return float(row["moved_bytes"]) * PASSES.get(operator, 1) / (float(row["time_us"]) * 1e-6)


@pytest.mark.parametrize("operator", RATES.block_bytes_per_s)
def test_a_thread_block_of_batch_norm_moves_the_median_of_those_with_few_channels(operator: str) -> None:
    few = rows_of(operator, wanted=lambda channels: channels <= FEW)
    found = median(bytes_per_s(operator, row) / channels_of(row) for row in few)
    assert RATES.block_bytes_per_s[operator] == pytest.approx(found, rel=0.03)


@pytest.mark.parametrize("operator", sorted(set(RATES.multiprocessor_bytes_per_s) - {"change_of_layout"}))
def test_a_multiprocessor_moves_the_median(operator: str) -> None:
    many = rows_of(operator, wanted=lambda channels: channels >= MANY or "batch_norm" not in operator)
    found = median(bytes_per_s(operator, row) / MULTIPROCESSORS for row in many)
    assert RATES.multiprocessor_bytes_per_s[operator] == pytest.approx(found, rel=0.03)


def test_products_with_odd_rows_reach_the_median_of_gpt2s_last_layer() -> None:
    found = [
        float(row["operations"]) / (float(row["time_us"]) * 1e-6) / MULTIPROCESSORS
        for row in rows_of("mm")
        if "50257" in row["arguments"]
    ]
    assert len(found) == 3
    assert RATES.unaligned_ops_per_s == pytest.approx(median(found), rel=0.03)
