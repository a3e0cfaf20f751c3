"""Costs measured on the CPU."""

import torch

from membench.codecs.rows import csr
from membench.profiling.measured_cost import MeasuredCost


def test_a_measured_codec_time_is_remembered() -> None:
    cost = MeasuredCost(torch.device("cpu"))
    codec = csr()
    seconds = cost.codec_time_s(codec, 4 * 2**16, codec.size_bytes(2**16, 2**15))
    assert 0 < seconds == cost.codec_time_s(codec, 4 * 2**16, codec.size_bytes(2**16, 2**15))
