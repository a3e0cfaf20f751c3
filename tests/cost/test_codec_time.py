"""Seconds of encoding and decoding: by rates, and measured."""

import pytest
import torch

from membench.codecs.rows import csr, vp_encoding
from membench.core import configuration
from membench.core.efficiency import Efficiency
from membench.cost.roofline import RooflineCost
from membench.profiling.measured_cost import MeasuredCost

DEVICE = configuration.load("device", "k40c")
SIZES_BYTES = (4 * 2**20, 2**20)


@pytest.mark.parametrize(("streams", "speedup"), [(1, 1.0), (2, 2.0), (7, 3.0)])
def test_both_forms_move_at_the_rate_of_the_streams_together(streams: int, speedup: float) -> None:
    efficiency = Efficiency(arithmetic=0.5, memory=0.7, codec=0.01, codec_streams=3.0)
    seconds = RooflineCost(DEVICE, efficiency).codec_time_s(vp_encoding(streams=streams), *SIZES_BYTES)
    assert seconds == pytest.approx(sum(SIZES_BYTES) / (0.01 * speedup * DEVICE.memory_bytes_per_s))


def test_without_a_rate_of_its_own_a_codec_moves_bytes_as_kernels_do() -> None:
    cost = RooflineCost(DEVICE, Efficiency(arithmetic=0.5, memory=0.7))
    assert cost.codec_time_s(csr(), *SIZES_BYTES) == pytest.approx(
        sum(SIZES_BYTES) / (0.7 * DEVICE.memory_bytes_per_s)
    )


def test_a_measured_time_is_remembered() -> None:
    cost = MeasuredCost(torch.device("cpu"))
    codec = csr()
    seconds = cost.codec_time_s(codec, 4 * 2**16, codec.size_bytes(2**16, 2**15))
    assert 0 < seconds == cost.codec_time_s(codec, 4 * 2**16, codec.size_bytes(2**16, 2**15))
