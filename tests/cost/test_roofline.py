"""Seconds of tasks, copies and codecs by the rates of a device."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.codecs.rows import csr, vp_encoding
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.convolution import Convolution
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import GradientOf, Kind, Phase, Task, TaskGraph
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency
from membench.core.units import MIB, parse_bytes
from membench.cost.roofline import ARITHMETIC_KINDS, RooflineCost
from tests.helpers.planning.chains import chain_of_convolutions

DEVICE = DeviceProfile(
    name="round",
    memory_bytes=1,
    arithmetic_ops_per_s=1e12,
    memory_bytes_per_s=1e11,
    host_to_device_bytes_per_s=1e10,
    device_to_host_bytes_per_s=5e9,
    copy_latency_s=1e-3,
    full_duplex=True,
)
K40C = configuration.load("device", "k40c")
CODEC_BYTES = (4 * 2**20, 2**20)
"""Of an activation and of its encoded form."""
PYTORCH = configuration.load("framework", "pytorch").efficiency
COST = RooflineCost(DEVICE, Efficiency(arithmetic=0.5, memory=0.25, launch_s=1e-4, step_s=0.1))


def task(kind: Kind, index: int = 0) -> Task:
    return Task(index, "task", kind, Phase.FORWARD, 0, (), (), (), operations=10**12, moved_bytes=10**11)


@pytest.mark.parametrize(
    ("kind", "time_s"),
    [(Kind.CONVOLUTION, 2.0), (Kind.LINEAR, 2.0), (Kind.BATCH_NORM, 4.0), (Kind.ADD, 4.0), (Kind.OTHER, 4.0)],
)
def test_the_rate_that_bounds_a_kind_decides(kind: Kind, time_s: float) -> None:
    assert COST.task_time_s(task(kind)) == pytest.approx(time_s)


def test_the_time_of_a_step_itself_precedes_its_first_task() -> None:
    assert COST.launch_time_s(task(Kind.ADD, index=0)) == pytest.approx(0.1001)
    assert COST.launch_time_s(task(Kind.ADD, index=1)) == pytest.approx(0.0001)


def test_copies_have_latency_and_the_rate_of_their_direction() -> None:
    assert COST.offload_time_s(10**10) == pytest.approx(2.001)
    assert COST.prefetch_time_s(10**10) == pytest.approx(1.001)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": Precision.FP16},
        {"gradient_of": GradientOf.DATA},
        {"moved_bytes": 10**9},
        {"operations": 10**12},
        {"host_bytes": 10**8},
        {"writes": (), "creates": ()},
        {"convolution": None},
        {"kind": Kind.ATTENTION},
        {"call": None},
    ],
    ids=str,
)
def test_a_time_that_is_kept_is_that_of_the_task_itself(changes: dict[str, Any]) -> None:
    used = RooflineCost(configuration.load("device", "rtx3090"), PYTORCH)
    for one in chain_of_convolutions(2, normalized=True).tasks:
        before_s, changed = used.task_time_s(one), replace(one, **changes)
        unused = pickle.loads(pickle.dumps(used))
        assert used.task_time_s(changed) == unused.task_time_s(changed)
        assert used.task_time_s(one) == before_s


def test_a_graph_needs_no_more_workspace() -> None:
    graph = TaskGraph("empty", 1, (), (), ())
    assert COST.annotate(graph) is graph


def test_configured_devices_match_table_4_of_layrub() -> None:
    k40m: DeviceProfile = configuration.load("device", "k40m")
    titan_z: DeviceProfile = configuration.load("device", "titan_z")
    assert k40m.memory_bytes == parse_bytes("11580 MB")
    assert titan_z.memory_bytes == parse_bytes("6082 MB")
    assert k40m.arithmetic_ops_per_s == pytest.approx(2 * 2880 * 745e6)
    assert titan_z.arithmetic_ops_per_s == pytest.approx(2 * 2880 * 705e6)
    assert k40m.host_to_device_bytes_per_s == pytest.approx(10038.7 * MIB, rel=1e-4)
    assert k40m.device_to_host_bytes_per_s == pytest.approx(10046.7 * MIB, rel=1e-4)
    assert [configuration.load("device", name).name for name in configuration.names("device")] == (
        configuration.names("device")
    )


@pytest.mark.parametrize(("streams", "speedup"), [(1, 1.0), (2, 2.0), (7, 3.0)])
def test_both_forms_move_at_the_rate_of_the_streams_together(streams: int, speedup: float) -> None:
    efficiency = Efficiency(arithmetic=0.5, memory=0.7, codec=0.01, codec_streams=3.0)
    seconds = RooflineCost(K40C, efficiency).codec_time_s(vp_encoding(streams=streams), *CODEC_BYTES)
    assert seconds == pytest.approx(sum(CODEC_BYTES) / (0.01 * speedup * K40C.memory_bytes_per_s))


def test_without_a_rate_of_its_own_a_codec_moves_bytes_as_kernels_do() -> None:
    cost = RooflineCost(K40C, Efficiency(arithmetic=0.5, memory=0.7))
    assert cost.codec_time_s(csr(), *CODEC_BYTES) == pytest.approx(sum(CODEC_BYTES) / (0.7 * K40C.memory_bytes_per_s))


TEN_MULTIPROCESSORS = replace(DEVICE, multiprocessors=10)


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.sampled_from(sorted(ARITHMETIC_KINDS)))
def test_a_product_takes_the_longer_of_operations_and_bytes_where_its_framework_asks_for_it(
    operations: int, moved_bytes: int, kind: Kind
) -> None:
    product = replace(task(kind), operations=operations, moved_bytes=moved_bytes)
    bounded = RooflineCost(DEVICE, Efficiency(arithmetic=0.5, memory=0.25, bandwidth_bounds_products=True))
    computing_s, moving_s = operations / 0.5e12, moved_bytes / 0.25e11
    assert bounded.task_time_s(product) == pytest.approx(max(computing_s, moving_s))
    assert COST.task_time_s(product) == pytest.approx(computing_s)


@given(st.integers(1, 10**9), st.sampled_from(sorted(Kind)), st.floats(0.1, 5.0))
def test_a_small_kernel_reaches_less_of_its_rate(moved_bytes: int, kind: Kind, half_waves: float) -> None:
    small = replace(task(kind), moved_bytes=moved_bytes)
    efficiency = Efficiency(arithmetic=0.5, memory=0.25)
    full = RooflineCost(TEN_MULTIPROCESSORS, efficiency)
    partial = RooflineCost(TEN_MULTIPROCESSORS, replace(efficiency, half_waves=half_waves))
    waves = moved_bytes / 8 / (128 * 64) / 10
    assert partial.occupancy(small) == pytest.approx(waves / (waves + half_waves))
    assert partial.task_time_s(small) == pytest.approx(full.task_time_s(small) / partial.occupancy(small))
    assert full.task_time_s(small) == RooflineCost(DEVICE, efficiency).task_time_s(small)


def test_a_convolution_counts_in_whole_tiles() -> None:
    """48 of its channels, and so three quarters of a tile, are computed."""
    geometry = Convolution(8, 64, 48, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), groups=1, itemsize=4)
    product = replace(task(Kind.CONVOLUTION), operations=10**9, convolution=geometry)
    tiled = RooflineCost(DEVICE, Efficiency(arithmetic=0.5, memory=0.25, tile_channels=64))
    assert tiled.task_time_s(product) == pytest.approx(COST.task_time_s(product) / 0.75)


@pytest.mark.parametrize("gradient_of", [None, *GradientOf])
def test_a_convolution_s_rate_is_that_of_its_pass(gradient_of: GradientOf | None) -> None:
    """And an inner product's is not."""
    passes = {Phase.FORWARD: 1.25, GradientOf.DATA: 0.8}
    cost = RooflineCost(DEVICE, Efficiency(arithmetic=0.5, memory=0.25, passes=passes))
    geometry = Convolution(8, 64, 64, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (1, 1), groups=1, itemsize=4)
    product = replace(task(Kind.CONVOLUTION), convolution=geometry, gradient_of=gradient_of)
    factor = passes.get(gradient_of or Phase.FORWARD, 1.0)
    assert cost.task_time_s(product) == pytest.approx(COST.task_time_s(product) / factor)
    linear = replace(task(Kind.LINEAR), gradient_of=gradient_of)
    assert cost.task_time_s(linear) == COST.task_time_s(linear)


def test_waves_need_the_number_of_multiprocessors() -> None:
    with pytest.raises(MembenchError, match="device 'round' has no multiprocessors"):
        RooflineCost(DEVICE, Efficiency(arithmetic=0.5, memory=0.25, half_waves=1.0))


def test_every_configured_device_can_run_every_configured_framework() -> None:
    frameworks = [configuration.load("framework", name) for name in configuration.names("framework")]
    devices = [configuration.load("device", name) for name in configuration.names("device")]
    costs = [RooflineCost(device, framework.efficiency) for framework in frameworks for device in devices]
    assert len(costs) == len(frameworks) * len(devices)
