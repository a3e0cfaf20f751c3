"""Cluster: the hosts and links through which several equal devices train one model."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from membench.core import configuration
from membench.core.checks import BELOW_ONE, COUNT, NOT_NEGATIVE, POSITIVE, SWITCH, check
from membench.core.errors import MembenchError
from membench.core.hardware.device import DeviceProfile, as_device

if TYPE_CHECKING:  # which takes torch
    from membench.core.hardware.machine import Machine


@dataclass(frozen=True)
class Cluster:
    """Hosts with equally many devices each; every device computes its share of the batch.

    Attributes:
        hosts: number of machines; a file in conf/cluster describes one of them, and its network.
        devices_per_host: number of devices, all of one kind.
        device: their profile, or its name in conf/device; empty where any device may be in the hosts.
        devices_per_link: so many devices share each link to the host's memory.
        cores: CPU cores per host that sum its devices' gradients.
        core_bytes_per_s: bytes that one core reads and writes per second while it sums.
        host_memory_bytes_per_s: bytes that all cores together can read and write per second.
        network_bytes_per_s: rate out of a host through all its ports, and at the same time into it.
        network_latency_s: from one host to the next.
        rails: network ports of a host that different devices use at the same time, each at an equal part of the rate.
        hosts_per_switch: so many hosts have one switch for their devices, which reach each other as those of one host
            do.
        peer_link: what joins the devices of a host, as in `DeviceProfile.peer_link`; None: not known, or any.
        links_by_pair: each pair of a host's devices has a link of its own, with an equal part of `peer_bytes_per_s`, so
            that a group of few devices has few links (AMD's Infinity Fabric).
        peer_bytes_per_s: rate out of each device to the next one of its host, and at the same time into it, that rings
            of large messages reach (the bus bandwidth of nccl-tests).
        peer_latency_s: time of one step of a ring between devices of a host, for the smallest messages.
        switch_bytes_per_s: bytes of the tensor per second at which the switch between a host's devices adds all of them
            up and hands out the sum (NVLink SHARP); None if it cannot.
        collective_start_s: time of any collective of the smallest messages.
        collective_share: share of a device's multiprocessors that a running collective keeps from other kernels.

    Raises:
        MembenchError: a count is not a positive whole number, a rate not positive, a latency negative, the share not
            below 1, or the devices of a host do not divide into links of equally many.
    """

    hosts: int = 1
    devices_per_host: int = 1
    device: str | DeviceProfile = field(default="", hash=False)  # a profile has rates by name, in a dict
    devices_per_link: int = 1
    cores: int = 1
    core_bytes_per_s: float = math.inf
    host_memory_bytes_per_s: float = math.inf
    network_bytes_per_s: float = math.inf
    network_latency_s: float = 0.0
    rails: int = 1
    hosts_per_switch: int = 1
    peer_link: str | None = None
    links_by_pair: bool = False
    peer_bytes_per_s: float = math.inf
    peer_latency_s: float = 0.0
    switch_bytes_per_s: float | None = None
    collective_start_s: float = 0.0
    collective_share: float = 0.0

    def __post_init__(self) -> None:
        check(
            COUNT,
            hosts=self.hosts,
            devices_per_host=self.devices_per_host,
            devices_per_link=self.devices_per_link,
            cores=self.cores,
            rails=self.rails,
            hosts_per_switch=self.hosts_per_switch,
        )
        check(SWITCH, links_by_pair=self.links_by_pair)
        check(
            POSITIVE,
            core_bytes_per_s=self.core_bytes_per_s,
            host_memory_bytes_per_s=self.host_memory_bytes_per_s,
            network_bytes_per_s=self.network_bytes_per_s,
            peer_bytes_per_s=self.peer_bytes_per_s,
        )
        if self.switch_bytes_per_s is not None:
            check(POSITIVE, switch_bytes_per_s=self.switch_bytes_per_s)
        check(
            NOT_NEGATIVE,
            network_latency_s=self.network_latency_s,
            peer_latency_s=self.peer_latency_s,
            collective_start_s=self.collective_start_s,
        )
        check(BELOW_ONE, collective_share=self.collective_share)
        if self.devices_per_host % self.devices_per_link:
            raise MembenchError(
                f"devices_per_link divides the {self.devices_per_host} devices of a host, but "
                f"{self.devices_per_link} does not; 1 gives each device a link of its own"
            )

    @property
    def devices(self) -> int:
        return self.hosts * self.devices_per_host

    @property
    def joined_hosts(self) -> int:
        """Hosts whose devices one switch joins."""
        return min(self.hosts, self.hosts_per_switch)

    @property
    def joined_devices(self) -> int:
        """Devices that reach each other without the network."""
        return self.joined_hosts * self.devices_per_host

    def sum_time_s(self, size_bytes: int) -> float:
        """Return the seconds in which a host adds up one block of each of its devices."""
        if self.devices_per_host == 1:
            return 0.0
        bytes_per_s = min(self.cores * self.core_bytes_per_s, self.host_memory_bytes_per_s)
        return (self.devices_per_host + 1) * size_bytes / bytes_per_s

    def ring_time_s(self, size_bytes: int) -> float:
        """Return the seconds of a ring all-reduce of a block between the hosts."""
        rounds = 2 * (self.hosts - 1)
        return rounds * (size_bytes / self.hosts / self.network_bytes_per_s + self.network_latency_s)

    def network_time_s(self, size_bytes: float) -> float:
        """Return the seconds of that many bytes through one host's port; 0 with a single host."""
        return 0.0 if self.hosts == 1 else size_bytes / self.network_bytes_per_s + self.network_latency_s

    @cached_property
    def profile(self) -> DeviceProfile:
        """The profile of each device, which has its link for itself.

        Raises:
            MembenchError: any device may be in the hosts, there is none of that name, or its links are not those of the
                hosts.
        """
        device = as_device(self.device or None)
        if None not in (self.peer_link, device.peer_link) and device.peer_link != self.peer_link:
            found = {name: configuration.read("cluster", name) for name in configuration.names("cluster")}
            fitting = [
                name for name, each in found.items() if each.get("device") and each.get("peer_link") == device.peer_link
            ]
            raise MembenchError(
                f"{device.name} has {device.peer_link}, and the devices of this cluster are joined by "
                f"{self.peer_link}; choose {'cluster ' + ' or '.join(fitting) if fitting else 'another cluster'}, or "
                "describe one in conf/cluster"
            )
        return device

    @property
    def device_name(self) -> str:
        """Name of the devices; see `profile`."""
        return self.profile.name

    @property
    def loaded(self) -> DeviceProfile:
        """Each device's profile while all copy at once, at its share of the link's rate; see `profile`."""
        device = self.profile
        return replace(
            device,
            host_to_device_bytes_per_s=device.host_to_device_bytes_per_s / self.devices_per_link,
            device_to_host_bytes_per_s=device.device_to_host_bytes_per_s / self.devices_per_link,
        )

    def share_of(self, machine: "Machine") -> "Machine":
        """Return what each device's rank has of the machine that is a host, while all ranks of the host use it."""
        return machine.share_of(self.devices_per_host)

    @property
    def free_bytes(self) -> int:
        """What the context leaves of each device's memory; see `profile`."""
        return self.profile.free_bytes


SINGLE_DEVICE = Cluster()
"""One device that exchanges nothing."""
