"""Names of devices and pictures as names of files, and the device files of `conf/device`."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.hardware.device import DeviceProfile, file_name
from membench.core.units import GIB

DEVICES = configuration.names("device")
TODAY = {
    *("t4", "l4", "rtx2080ti", "rtx3060", "rtx3070", "rtx3090", "rtx4060", "rtx4090", "rtx5090", "a10"),
    *("a100_40gb", "a100_80gb", "h100", "h200", "v100", "p100", "k80", "mi300x"),
    *("b200", "gb200", "gh200", "h100_pcie", "h800", "a800_80gb_sxm"),
    *("a5000", "a6000", "l40s", "rtx6000ada", "rtx5080"),
}
STATED_GIB = {
    "t4": 14.56,
    "l4": 21.99,
    "a10": 21.99,
    "a100_40gb": 39.38,
    "a100_80gb": 79.10,
    "a100_80gb_sxm": 79.14,
    "h100": 79.11,
    "h100_96gb": 95.00,
    "h200": 139.72,
    "v100": 31.74,
    "p100": 15.90,
    "p4": 7.93,
    "k80": 11.17,
    "mi300x": 191.98,
    "rtx2080ti": 10.75,
    "rtx3060": 11.62,
    "rtx3070": 7.76,
    "rtx3090": 23.55,
    "rtx4060": 7.63,
    "rtx4090": 23.49,
    "rtx5080": 15.48,
    "rtx5090": 31.36,
    "gtx1080_ti": 10.92,
    "a5000": 23.55,
    "a6000": 47.54,
    "rtx6000ada": 47.48,
    "l40s": 44.31,
    "h100_pcie": 79.11,
    "h20": 95.00,
    "b200": 178.35,
    "gb200": 184.31,
    "gh200": 94.50,
    "h800": 79.11,
    "a800_80gb_sxm": 79.14,
    "v100_dgx2": 31.72,
    "v100_dgx2_of_16": 31.72,
}
"""Smallest total that a driver states, as PyTorch's messages round it; `conf/device` has the sources."""
OF_PAPERS = {"k40_modnn", "k40_vdnn", "k40c", "k40m", "titan_z", "titan_x_maxwell", "gtx1070"}
SUPERCHIPS = {"gh200", "gb200"}
"""Their link to the host is NVLink-C2C."""
LANE_TRANSFERS_PER_S = {"3.0": 8e9, "4.0": 16e9, "5.0": 32e9}
"""Of PCI Express, by generation; a transfer is a bit, and 128 of 130 bits are data."""
ARCHITECTURES = {
    "Kepler": {3.5, 3.7},
    "Maxwell": {5.2},
    "Pascal": {6.0, 6.1},
    "Volta": {7.0},
    "Turing": {7.5},
    "Ampere": {8.0, 8.6},
    "Ada Lovelace": {8.9},
    "Hopper": {9.0},
    "Blackwell": {10.0, 12.0},
}
"""Compute capabilities of cards by the name of their architecture."""


def test_usual_names_stay_readable() -> None:
    assert file_name("NVIDIA H200") == "nvidia_h200"
    assert file_name("../../a <b> $(c) `d`\n") == "a_b_c_d"


@given(name=st.text())
def test_any_name_is_one_short_file_in_its_folder(name: str) -> None:
    found = file_name(name)
    assert found.isascii() and found.replace("_", "a").isalnum()
    assert len(found) <= 210


@given(name=st.text(min_size=300), other=st.text())
def test_names_of_which_little_is_left_are_told_apart(name: str, other: str) -> None:
    assert name == other or file_name(f"{name}é") != file_name(f"{other}é")


def test_the_cards_that_people_ask_for_have_files() -> None:
    assert set(DEVICES) >= TODAY


def _numbers(name: str) -> dict[str, tuple[float, str]]:
    """Return the numbers and switches in a device's file, each with the comment on its line."""
    text = (configuration.CONF_DIRECTORY / "device" / f"{name}.yaml").read_text()
    lines = re.findall(r"^ *(\w+): ([\d.e+-]+|true|false)(?:  # (.+))?$", text, re.MULTILINE)
    return {key: (float(value) if value[0].isdigit() else value == "true", why) for key, value, why in lines}


@pytest.mark.parametrize("name", DEVICES)
def test_each_number_of_a_device_has_a_source_on_its_line(name: str) -> None:
    numbers = _numbers(name)
    assert len(numbers) >= 8
    assert [key for key, (_, why) in numbers.items() if len(why) < 5] == []


@pytest.mark.parametrize("name", DEVICES)
def test_the_numbers_of_a_device_are_those_that_its_sources_give(name: str) -> None:
    """Clocks times cores, GB times GiB, and fractions of a link are computed again from the comments."""
    numbers = _numbers(name)
    rate, why = numbers["arithmetic_ops_per_s"]
    if found := re.search(r"(\d+) x (\d+) (cores|compute units) x (\d+) MHz", why):
        operations, units, _, clock = found.groups()
        assert rate == pytest.approx(int(operations) * int(units) * int(clock) * 1e6, rel=0.01)
        assert int(units) % numbers["multiprocessors"][0] == 0
    size, why = numbers["memory_bytes"]
    if found := re.search(r'(\d+) GB[,"].* read as GiB', why):
        assert size == int(found.group(1)) * GIB
    for key in ("host_to_device_bytes_per_s", "device_to_host_bytes_per_s"):
        rate, why = numbers[key]
        if found := re.search(r"0\.8 of PCIe ([\d.]+) x(\d+)", why):
            link = LANE_TRANSFERS_PER_S[found.group(1)] * 128 / 130 / 8 * int(found.group(2))
            assert rate == pytest.approx(0.8 * link, rel=1e-3)


@pytest.mark.parametrize("name", DEVICES)
def test_a_capacity_is_the_driver_s_and_not_the_label_s(name: str) -> None:
    size_bytes, why = _numbers(name)["memory_bytes"]
    is_label = "the label's number, not the driver's" in why
    assert (name in STATED_GIB) != (name in OF_PAPERS)
    assert is_label == (name in OF_PAPERS - {"k40m", "titan_z"})  # whose paper has the driver's number
    if name in STATED_GIB:
        assert STATED_GIB[name] - 0.01 < size_bytes / GIB < STATED_GIB[name] + 0.005


def test_capacities_are_below_those_of_public_out_of_memory_messages() -> None:
    """Of the cards on which a tensor was said to fit that does not."""
    messages = {"t4": 14.56, "l4": 22.49, "a10": 21.99, "rtx4090": 23.68, "rtx2080ti": 10.76, "v100": 31.75}
    for name, total_gib in messages.items():
        assert configuration.load("device", name).memory_bytes <= total_gib * GIB


@pytest.mark.parametrize("name", sorted(TODAY))
def test_tensor_cores_of_a_card_of_today_are_as_fast_as_their_sources_say(name: str) -> None:
    """Operations per clock, multiprocessors and clocks give the rates; each is the one that the file has elsewhere."""
    device, numbers = configuration.load("device", name), _numbers(name)
    for precision, rate in device.precision_ops_per_s.items():
        found = re.search(r"(\d+) operations per clock x (\d+) .* x (\d+) MHz", numbers[precision][1])
        assert found is not None
        operations, units, clock = map(int, found.groups())
        assert rate == pytest.approx(operations * units * clock * 1e6, rel=5e-3)
        assert units == device.multiprocessors
    rates = [device.product_ops_per_s(precision) for precision in (Precision.TF32, Precision.BF16)]
    is_ampere_or_later = "bf16" in device.precision_ops_per_s
    assert (
        (rates[1] == pytest.approx(2 * rates[0], rel=1e-3))
        if is_ampere_or_later
        else (rates == [device.arithmetic_ops_per_s] * 2)
    )
    assert is_ampere_or_later == (name not in {"k80", "p100", "v100", "t4", "rtx2080ti"})


@pytest.mark.parametrize("name", sorted(TODAY - SUPERCHIPS))
def test_the_link_of_a_card_of_today_carries_what_its_copies_reach(name: str) -> None:
    device = configuration.load("device", name)
    transfers_per_s = LANE_TRANSFERS_PER_S[f"{device.link_generation}.0"]
    link_bytes_per_s = transfers_per_s * 128 / 130 / 8 * device.link_lanes
    assert 0.6 < device.host_to_device_bytes_per_s / link_bytes_per_s < 0.95


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precision_ops_per_s": {"fp4": 1e12}}, "tf32, bf16, fp16, fp8, int8"),
        ({"precision_ops_per_s": {"fp16": 0.0}}, "precision_ops_per_s.fp16 is a positive number"),
        ({"l2_bytes": -1}, "l2_bytes is a positive whole number"),
        ({"compute_capability": 0.0}, "compute_capability is a positive number"),
        ({"pageable_device_to_host_bytes_per_s": 0.0}, "pageable_device_to_host_bytes_per_s is a positive"),
    ],
)
def test_a_wrong_optional_number_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        replace(configuration.load("device", "v100"), **wrong)


@pytest.mark.parametrize("name", DEVICES)
def test_nvidia_s_cards_have_the_capability_of_their_architecture(name: str) -> None:
    title = (configuration.CONF_DIRECTORY / "device" / f"{name}.yaml").read_text().splitlines()[0]
    capability = configuration.load("device", name).compute_capability
    assert (capability is None) == ("AMD" in title)
    for architecture, capabilities in ARCHITECTURES.items():
        assert f"({architecture}" not in title or capability in capabilities


@pytest.mark.parametrize("name", DEVICES)
def test_the_numbers_of_a_device_are_plausible_together(name: str) -> None:
    device = configuration.load("device", name)
    assert isinstance(device, DeviceProfile)
    assert device.name == name
    assert device.multiprocessors is not None
    to_device, to_host = device.host_to_device_bytes_per_s, device.device_to_host_bytes_per_s
    assert 9 < device.arithmetic_ops_per_s / device.memory_bytes_per_s < 110  # operations for each byte
    assert 1e11 < device.arithmetic_ops_per_s / device.multiprocessors < 1e12
    assert 0.01 < device.memory_bytes / device.memory_bytes_per_s < 0.1  # seconds to read all of it
    assert 10 < device.memory_bytes_per_s / to_device < 150
    assert 0.85 < to_device / to_host < 1.15
    most = 450e9 if name in SUPERCHIPS else 63.02e9  # NVLink-C2C, PCIe 5.0 x16
    assert 10e9 < min(to_device, to_host) <= max(to_device, to_host) < most  # PCIe 2.0 x16 is below
    assert 1e-6 <= device.copy_latency_s <= 1e-4


@pytest.mark.parametrize("name", sorted(set(DEVICES) - OF_PAPERS))
def test_a_clock_below_the_boost_clock_has_its_reason(name: str) -> None:
    device = configuration.load("device", name)
    if device.sustained_clock < 1:
        assert device.sustained_clock > 0.3
        assert re.search("published|assumed", _numbers(name)["sustained_clock"][1])


def test_clocks_that_are_assumed_follow_from_the_power_of_a_multiprocessor() -> None:
    """The rule in `docs/device.md`: the H100 SXM's clock (700 W) times the cube root of power by multiprocessor."""
    sxm_clock_mhz, sxm_w = 1830, 700 / 132
    for name, watts, multiprocessors, boost_mhz in (("h100_96gb", 500, 132, 1830), ("h100_pcie", 350, 114, 1620)):
        clock_mhz = sxm_clock_mhz * (watts / multiprocessors / sxm_w) ** (1 / 3)
        device = configuration.load("device", name)
        assert device.multiprocessors == multiprocessors
        assert device.sustained_clock == pytest.approx(clock_mhz / boost_mhz, abs=1e-3)
