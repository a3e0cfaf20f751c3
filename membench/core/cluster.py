"""Cluster: what a simulator has to know of several equal devices that train one model."""

import math
from dataclasses import dataclass, replace

from membench.core.checks import COUNT, NOT_NEGATIVE, POSITIVE, SWITCH, check
from membench.core.device import DeviceProfile


@dataclass(frozen=True)
class Cluster:
    """Hosts, each with as many devices; every device computes its share of the batch.

    Attributes:
        hosts: machines.
        devices_per_host: of one kind.
        shared_link: the devices of a host reach its memory by one link; otherwise each has a link of its own.
        cores: of a host, that sum its devices' gradients.
        core_bytes_per_s: that one core reads and writes as it sums.
        host_memory_bytes_per_s: that all cores together can read and write.
        network_bytes_per_s: out of a host, and as many into it at the same time.
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
        """Return the seconds of that many bytes through one host's port; none where there is one host."""
        return 0.0 if self.hosts == 1 else size_bytes / self.network_bytes_per_s + self.network_latency_s

    def loaded(self, device: DeviceProfile) -> DeviceProfile:
        """Return one of the devices as it is while all copy at once, each at its part of the link's rate."""
        return replace(
            device,
            host_to_device_bytes_per_s=device.host_to_device_bytes_per_s / self.devices_per_link,
            device_to_host_bytes_per_s=device.device_to_host_bytes_per_s / self.devices_per_link,
        )


ALONE = Cluster()
"""A device of its own."""
