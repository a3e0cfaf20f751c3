"""EPMC's own numbers: encodings of random maps (ratios by real encoding, times by the cost model), and stored activations."""

import pytest

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.cost.roofline import RooflineCost
from membench.papers.metrics.epmc import encoded_map_metrics

COST = RooflineCost(
    configuration.load("device", "k40c"), configuration.load("framework", "pytorch_epmc").efficiency
)


def encoded(codec: str, streams: int = 1) -> dict[str, float]:
    return encoded_map_metrics(codec, streams, 400, 256, COST)


def test_ratios_follow_the_layouts() -> None:
    assert encoded("vp")["footprint_ratio:90"] == pytest.approx(13.0, rel=0.01)
    assert encoded("csr")["break_even_sparsity_percent"] == pytest.approx(50, abs=1)
    assert encoded("coo")["break_even_sparsity_percent"] == pytest.approx(100 * 2 / 3, abs=1)
    assert encoded("dia")["footprint_ratio:50"] < 1


def test_streams_add_up_until_the_device_is_full() -> None:
    one, two, seven = (encoded("csr", streams)["encode_time_s"] for streams in (1, 2, 7))
    assert one / two == pytest.approx(2, rel=0.05)
    assert one / seven == pytest.approx(5.26, rel=0.1)


def test_beside_a_relu_takes_as_long_as_the_longer_one() -> None:
    found = encoded("vp", 7)
    assert found["encode_time_s"] <= found["in_parallel_time_s"] < found["in_series_time_s"]


def test_an_unknown_codec_is_refused_with_those_there_are() -> None:
    with pytest.raises(MembenchError, match="choose one of vp, csr"):
        encoded("zip")
