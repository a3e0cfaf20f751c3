"""EPMC's numbers: encodings of random maps, ratios by encoding, times by the cost model, Table 2's count."""

import statistics

import pytest
import torch
from torch import nn

from experiments.epmc.metrics import encoded_map_metrics, step_metrics
from membench.capture.capture import capture
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.step.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.models.vgg import vgg
from membench.steps.plan import plan
from membench.strategies.eager import Eager

COST = RooflineCost(configuration.load("device", "k40c"), configuration.load("framework", "pytorch_epmc").efficiency)


def encoded(codec: str, streams: int = 1, elements: int = 10**6) -> dict[str, float]:
    return encoded_map_metrics(codec, streams, elements, 256, COST)


def test_ratios_follow_the_layouts() -> None:
    assert encoded("vp")["footprint_ratio:90"] == pytest.approx(13.0, rel=0.01)
    assert encoded("csr")["break_even_sparsity_percent"] == pytest.approx(50, abs=1)
    assert encoded("coo")["break_even_sparsity_percent"] == pytest.approx(100 * 2 / 3, abs=1)
    assert encoded("dia")["footprint_ratio:50"] < 1


def test_streams_add_up_until_the_device_is_full() -> None:
    one, two, seven = (encoded("csr", streams)["encode_time_s"] for streams in (1, 2, 7))
    assert one / two == pytest.approx(2, rel=0.05)
    assert one / seven == pytest.approx(5.26, rel=0.1)
    assert encoded("csr", 7)["speedup_over_one_call"] == pytest.approx(one / seven)


def test_beside_a_relu_the_device_is_divided() -> None:
    """Seven streams fill it, and a launch is all that is gained; two leave the ReLU more than it needs."""
    found, two = encoded("vp", 7), encoded("vp", 2)
    launch_s = configuration.load("framework", "pytorch_epmc").efficiency.launch_s
    assert found["in_parallel_time_s"] == pytest.approx(found["in_series_time_s"] - launch_s)
    assert two["in_parallel_time_s"] == two["encode_time_s"] > found["in_parallel_time_s"]
    assert found["parallel_share"] == found["in_parallel_time_s"] / found["in_series_time_s"]


def test_a_small_volume_gains_more_beside_a_relu_and_by_streams() -> None:
    """Volumes are elements: 2,000 of them take little more than the launches, which the streams hide."""
    small, large = encoded("csr", 7, elements=2000), encoded("csr", 7, elements=128_000)
    assert small["parallel_share"] < large["parallel_share"]
    assert large["speedup_by_streams"] < small["speedup_by_streams"] < 7
    assert small["speedup_over_one_call"] < large["speedup_over_one_call"]
    assert small["footprint_ratio:50"] == large["footprint_ratio:50"]


def test_a_map_that_csr_would_enlarge_is_compared_as_dense() -> None:
    found, csr = encoded("vp"), encoded("csr")
    ratios = [found[f"footprint_ratio:{p}"] / max(1, csr[f"footprint_ratio:{p}"]) for p in range(10, 100, 10)]
    assert found["mean_ratio_to_csr"] == pytest.approx(statistics.fmean(ratios))
    assert csr["mean_ratio_to_csr"] == 1


def test_vp_encoding_costs_what_csr_costs() -> None:
    """cuSPARSE makes single-precision CSR, which is narrowed afterwards (Section 4.3)."""
    assert encoded("vp")["encode_time_s"] == pytest.approx(encoded("csr")["encode_time_s"], rel=0.01)


def test_table_2_counts_data_and_gradients_of_images_convolutions_poolings_and_linear_layers() -> None:
    with torch.device("meta"):
        work = Workload(
            "vgg16", vgg(16), nn.functional.cross_entropy, (torch.empty(1, 3, 224, 224),), (torch.empty(1).long(),)
        )
    schedule = plan(COST.annotate(capture(work).graph), Eager(), COST, None)
    found = step_metrics((RepeatedSchedule(schedule),), (), None)
    convolutions = sum(
        count * channels * (224 // 2**group) ** 2
        for group, (count, channels) in enumerate(zip((2, 2, 3, 3, 3), (64, 128, 256, 512, 512), strict=True))
    )
    poolings = sum(channels * (112 // 2**group) ** 2 for group, channels in enumerate((64, 128, 256, 512, 512)))
    assert found["layer_output_bytes"] == 2 * 4 * (3 * 224**2 + convolutions + poolings + 4096 + 4096 + 1000)


def test_an_unknown_codec_is_refused_with_those_there_are() -> None:
    with pytest.raises(MembenchError, match="choose one of vp, csr"):
        encoded("zip")
