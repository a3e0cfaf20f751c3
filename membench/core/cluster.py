"""Cluster: the hosts and links through which several equal devices train one model."""

import math
from dataclasses import dataclass, replace

from membench.core.checks import COUNT, NOT_NEGATIVE, POSITIVE, SWITCH, check
from membench.core.device import DeviceProfile


@dataclass(frozen=True)
class Cluster:
    """Hosts with equally many devices each; every device computes its share of the batch.

    Attributes:
        hosts: number of machines.
        devices_per_host: number of devices, all of one kind.
        shared_link: the devices of a host reach its memory by one link; otherwise each has its own link.
        cores: CPU cores per host that sum its devices' gradients.
        core_bytes_per_s: bytes that one core reads and writes per second while it sums.
        host_memory_bytes_per_s: bytes that all cores together can read and write per second.
        network_bytes_per_s: rate out of a host, and at the same time into it.
        network_latency_s: from one host to the next.

    Raises:
        MembenchError: a count is not a positive whole number, a rate not positive, or the latency negative.
    """

    hosts: int = 1
    devices_per_host: int = 1
    shared_link: bool = False
    cores: int = 1
    core_bytes_per_s: float = math.inf
    host_memory_bytes_per_s: float = math.inf
    network_bytes_per_s: float = math.inf
    network_latency_s: float = 0.0

    def __post_init__(self) -> None:
        check(COUNT, hosts=self.hosts, devices_per_host=self.devices_per_host, cores=self.cores)
        check(SWITCH, shared_link=self.shared_link)
        check(
            POSITIVE,
            core_bytes_per_s=self.core_bytes_per_s,
            host_memory_bytes_per_s=self.host_memory_bytes_per_s,
            network_bytes_per_s=self.network_bytes_per_s,
        )
        check(NOT_NEGATIVE, network_latency_s=self.network_latency_s)

    @property
    def devices(self) -> int:
        return self.hosts * self.devices_per_host

    @property
    def devices_per_link(self) -> int:
        return self.devices_per_host if self.shared_link else 1

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

    def loaded(self, device: DeviceProfile) -> DeviceProfile:
        """Return one device's profile while all devices copy at once, each at its share of the link's rate."""
        return replace(
            device,
            host_to_device_bytes_per_s=device.host_to_device_bytes_per_s / self.devices_per_link,
            device_to_host_bytes_per_s=device.device_to_host_bytes_per_s / self.devices_per_link,
        )


SINGLE_DEVICE = Cluster()
"""One device that exchanges nothing."""
