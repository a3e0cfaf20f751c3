"""Clusters of today: files that fit together with their devices, and numbers that no cluster can have."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.hardware.cluster import SINGLE_DEVICE, Cluster
from membench.core.hardware.device import DeviceProfile

FOLDER = Path(__file__).parents[2] / "conf" / "cluster"
OF_PAPERS = {"layrub_two_nodes", "modnn_k40x4", "one"}
TODAY = sorted({path.stem for path in FOLDER.glob("*.yaml")} - OF_PAPERS)


@pytest.mark.parametrize("name", TODAY)
def test_a_file_describes_one_host_its_device_and_their_links(name: str) -> None:
    cluster: Cluster = configuration.load("cluster", name)
    device = cluster.profile
    assert f"device={cluster.device}" in (FOLDER / f"{name}.yaml").read_text().splitlines()[0]
    assert cluster.hosts == 1 <= cluster.devices_per_host
    assert cluster.peer_link == device.peer_link is not None
    assert device.multiprocessors is not None
    channels = cluster.collective_share * device.multiprocessors
    assert 1 < channels < 33
    assert channels == pytest.approx(round(channels), rel=0.02)
    assert cluster.network_bytes_per_s / cluster.rails < 50e9  # NDR InfiniBand
    if cluster.devices_per_host > 1:
        assert device.device_to_host_bytes_per_s / 2 < cluster.peer_bytes_per_s < device.memory_bytes_per_s
        assert 0 < cluster.peer_latency_s < cluster.collective_start_s


@pytest.mark.parametrize("name", TODAY)
def test_every_number_of_a_cluster_has_its_source_or_says_that_it_is_assumed(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()[2:]
    counts = {"device", "rails", "devices_per_host"}  # of the machine that the first line names
    for line in lines:
        if line.partition(":")[0] not in counts:
            assert re.search(r"# \S", line), line


def test_a_cluster_has_the_device_that_is_named_or_given() -> None:
    cluster: Cluster = configuration.load("cluster", "dgx_h100")
    profile = configuration.load("device", "h200")
    assert cluster.profile == configuration.load("device", "h100")
    assert replace(cluster, device=profile).profile is profile
    assert (cluster.device_name, replace(cluster, device=profile).device_name) == ("h100", "h200")
    assert cluster.free_bytes == cluster.profile.memory_bytes - cluster.profile.context_bytes  # type: ignore[operator]
    assert hash(replace(cluster, device=profile)) == hash(cluster)
    with pytest.raises(MembenchError, match="a simulation needs a device"):
        _ = SINGLE_DEVICE.profile


def test_numbers_that_no_cluster_has_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"collective_share": 1}, "collective_share is a fraction from 0 to below 1, not 1"),
        ({"switch_bytes_per_s": 0}, "switch_bytes_per_s is a positive number, not 0"),
        ({"peer_bytes_per_s": 0}, "peer_bytes_per_s is a positive number, not 0"),
        ({"rails": 0}, "rails is a positive whole number, not 0"),
        ({"devices_per_host": 8, "devices_per_link": 3}, "divides the 8 devices of a host, but 3 does not"),
    ]
    for options, message in wrong:
        with pytest.raises(MembenchError, match=message):
            replace(SINGLE_DEVICE, **options)


PAIRS = [(cluster, device) for cluster in TODAY for device in configuration.names("device")]


@pytest.mark.parametrize(("name", "device"), PAIRS)
def test_a_device_is_in_hosts_with_its_own_links_alone(name: str, device: str) -> None:
    cluster = replace(configuration.load("cluster", name), device=device)
    profile: DeviceProfile = configuration.load("device", device)
    if profile.peer_link == cluster.peer_link:
        assert cluster.profile == profile
        return
    with pytest.raises(MembenchError) as refusal:
        _ = cluster.profile
    assert f"{device} has {profile.peer_link}" in str(refusal.value)
    assert f"joined by {cluster.peer_link}" in str(refusal.value)


def test_a_refusal_names_the_clusters_that_a_device_fits() -> None:
    with pytest.raises(MembenchError, match="choose cluster mi300x8, or describe one"):
        _ = replace(configuration.load("cluster", "dgx_h100"), device="mi300x").profile


def test_a_device_whose_links_are_not_known_may_be_in_any_hosts() -> None:
    profile = replace(configuration.load("device", "mi300x"), peer_link=None)
    assert replace(configuration.load("cluster", "dgx_h100"), device=profile).profile is profile
