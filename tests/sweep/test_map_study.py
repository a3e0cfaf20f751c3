"""Studies of encodings: ratios by real encoding, times by the cost model."""

import pytest
from hydra import compose

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.record import Outcome
from membench.cost.roofline import RooflineCost
from membench.papers.cells import cell_configuration, hydra_composition
from membench.sweep.cell import run_cell
from membench.sweep.map_study import MapStudy

COST = RooflineCost(
    configuration.load("device", "k40c"), configuration.load("framework", "pytorch_epmc").efficiency
)


def study(codec: str, streams: int = 1) -> dict[str, float]:
    return MapStudy(codec, streams).metrics(400, 256, COST)


def test_ratios_follow_the_layouts() -> None:
    assert study("vp")["footprint_ratio:90"] == pytest.approx(13.0, rel=0.01)
    assert study("csr")["break_even_sparsity_percent"] == pytest.approx(50, abs=1)
    assert study("coo")["break_even_sparsity_percent"] == pytest.approx(100 * 2 / 3, abs=1)
    assert study("dia")["footprint_ratio:50"] < 1


def test_streams_add_up_until_the_device_is_full() -> None:
    one, two, seven = (study("csr", streams)["encode_time_s"] for streams in (1, 2, 7))
    assert one / two == pytest.approx(2, rel=0.05)
    assert one / seven == pytest.approx(5.26, rel=0.1)


def test_encoding_in_parallel_with_a_relu_is_faster_than_in_series() -> None:
    found = study("vp", 7)
    assert found["encode_time_s"] <= found["in_parallel_time_s"] < found["in_series_time_s"]


def test_an_unknown_codec_is_refused_with_those_there_are() -> None:
    with pytest.raises(MembenchError, match="choose of vp, csr"):
        MapStudy("zip", 1)


@pytest.mark.parametrize(("backend", "outcome"), [("simulated", Outcome.OK), ("cpu", Outcome.UNSUPPORTED)])
def test_a_cell_of_a_study_is_a_record(backend: str, outcome: Outcome) -> None:
    words = [
        "model=synthetic_map", "study=encodings", "framework=pytorch_epmc", "device=k40c", "batch_size=20",
        f"backend={backend}",
    ]  # fmt: skip
    with hydra_composition():
        record = run_cell(cell_configuration(compose("config", words)))
    assert record.outcome is outcome
