"""Seconds of collectives of NCCL, by the model with which it chooses its algorithms itself.

    time = start + steps x latency of a step + bytes through the slowest link / its rate + pipeline

A collective is done by a ring, an all-reduce also by a pair of trees or by the switch between a host's devices; each in
one of NCCL's protocols, of which LL has the shortest steps and the least of the bandwidth, Simple the longest and all
of it. The fastest counts, as NCCL takes the one that it expects to be the fastest (NVIDIA/nccl, src/graph/tuning.cc,
whose constants were read at version 2.30: `ncclTunerConstantsDefaults`, `ncclTopoTuneModel`).

NCCL's model is for choosing: for messages of some MB it promises more than it reaches, and its corrections are tables
of factors. Here one term stands for them, *pipeline*, the geometric mean of the steps' latencies and of the bytes'
time. A message that is cut into pieces of the best size takes (sqrt(latency) + sqrt(bytes' time))^2, whose mixed part
is twice that mean; one half of it fits what nccl-tests measured in one host, and a fifth fits rings between hosts,
whose network cards send on their own (tests/cost/test_collectives.py has the values and the errors).

Not modelled: PAT (NCCL 2.23, groups with one device per host), SHARP in the switches of the network, trees of switches
(NVLSTree) beyond two hosts, which were measured slower than rings, and networks that are not full within (a fat tree
with fewer links further up).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf, log2, sqrt

from membench.core.errors import MembenchError
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.mesh import RankGroup

# One step of LL over InfiniBand has a microsecond of the network in it (assumed); the cluster's own takes its place.
_NETWORK_S = 1.0e-6

# A step of a ring between hosts is issued by a thread of the host: 1 microsecond with processors of Intel, 2 with AMD's
# (tuning.cc: getNetOverhead); with Simple three times of that. Steps within a host are then no shorter either.
_ISSUE_S = 1.0e-6

# Across hosts LL reaches at most this, by the host's processor (tuning.cc, llMaxBws: 19.0 with AMD, 20.4 with Intel's).
_LL_NETWORK_BYTES_PER_S = 20.0e9

# The part of the geometric mean that counts for rings between hosts: fitted, on nccl-tests#119 (24 x A100) and #232 (2
# x H100).
_RING_PIPELINE_BETWEEN_HOSTS = 0.4

# The switch: its latencies (tuning.cc, hwLatencies of NVLS and NVLSTree), and the number of devices in a host up to
# which a ring was measured to be taken (8 x H200: stas00/ml-engineering, network/README.md).
_SWITCH_S, _SWITCH_NETWORK_S, _TOO_FEW_FOR_THE_SWITCH = 25.0e-6, 20.9e-6, 4


@dataclass(frozen=True)
class _Protocol:
    """One way of NCCL to pass messages; every number is of tuning.cc.

    Attributes:
        start_s: beyond LL's (baseLatencies, ring).
        ring_step, tree_step: step in a host, as a multiple of LL's in a ring (hwLatencies, NVLINK).
        ring_network_s, tree_network_s: step between hosts (hwLatencies, NET).
        ring_share, tree_share: share of the rate of a link between devices, and for trees of the network's.
        issues: issues by the host, for each step of a ring between hosts.
    """

    start_s: float
    ring_step: float
    tree_step: float
    ring_network_s: float
    tree_network_s: float
    ring_share: float
    tree_share: float
    issues: int


# LL's share in a host: llMaxBws of 87.7e9 and 141.0e9 bytes/s over 240e9 and 370.8e9 bytes/s (A100, H100).
_LL = _Protocol(0.0, 1.0, 1.0, 2.7e-6, 5.0e-6, 0.37, 0.92 / 3.8, 1)
_LL128 = _Protocol(7.4e-6, 1.9 / 0.6, 1.25 / 0.6, 4.0e-6, 8.5e-6, 0.92, 0.92 * 120 / 128, 1)
_SIMPLE = _Protocol(1.8e-6, 3.4 / 0.6, 4.0 / 0.6, 14.0e-6, 14.0e-6, 1.0, 0.92, 3)
_PROTOCOLS = (_LL, _LL128, _SIMPLE)


def collective_time_s(cluster: Cluster, group: RankGroup, collective: Collective) -> float:
    """Return the seconds of one collective while nothing else uses its links, except the other groups of its axis.

    Args:
        cluster: whose links count.
        group: the ranks that take part; `Mesh.group` of the collective's axis.
        collective: what is passed.

    Returns:
        0 for a group of one rank.

    Raises:
        MembenchError: the group has more ranks in a host, or more hosts, than the cluster.
    """
    if group.per_host > cluster.joined_devices or group.hosts > ceil(cluster.hosts / cluster.joined_hosts):
        raise MembenchError(
            f"a group of {group.per_host} ranks in each of {group.hosts} hosts does not fit into "
            f"{cluster.hosts} hosts of {cluster.devices_per_host} devices; take the group of a mesh of this cluster"
        )
    if group.size == 1:
        return 0.0
    match collective.kind:
        case CollectiveKind.RECEIVE:
            return 0.0  # it waits for the send
        case CollectiveKind.SEND:
            return _send_time_s(cluster, group, collective.size_bytes)
        case CollectiveKind.ALL_TO_ALL:
            return _all_to_all_time_s(cluster, group, collective.size_bytes)
        case CollectiveKind.ALL_REDUCE:
            return min(_all_reduce_times_s(cluster, group, collective.size_bytes))
        case CollectiveKind.ALL_GATHER | CollectiveKind.REDUCE_SCATTER:
            return min(_ring_times_s(cluster, group, collective.size_bytes, rounds=1))


def _all_reduce_times_s(cluster: Cluster, group: RankGroup, size_bytes: int) -> Iterator[float]:
    yield from _ring_times_s(cluster, group, size_bytes, rounds=2)
    yield from _tree_times_s(cluster, group, size_bytes)
    if cluster.switch_bytes_per_s and group.hosts <= 2 and group.per_host > _TOO_FEW_FOR_THE_SWITCH:
        yield _switch_time_s(cluster, group, size_bytes, cluster.switch_bytes_per_s)


def _ring_times_s(cluster: Cluster, group: RankGroup, size_bytes: int, rounds: int) -> Iterator[float]:
    """Yield the seconds in each protocol; in a round each rank passes on all but its own part."""
    steps, between = rounds * (group.size - 1), rounds * (group.hosts - 1)
    passed_bytes = rounds * (group.size - 1) / group.size * size_bytes
    link_bytes_per_s = _ring_bytes_per_s(cluster, group)
    for protocol in _PROTOCOLS:
        step_s = protocol.ring_step * cluster.peer_latency_s
        network_s = protocol.ring_network_s if group.per_host > 1 else protocol.tree_network_s
        if group.hosts > 1:
            step_s = max(step_s, protocol.issues * _ISSUE_S)
        latency_s = (steps - between) * step_s + between * _network_step_s(cluster, network_s)
        bytes_per_s = protocol.ring_share * link_bytes_per_s
        if protocol is _LL and group.hosts > 1:
            bytes_per_s = min(0.5 * link_bytes_per_s, _LL_NETWORK_BYTES_PER_S)
        pipeline = _RING_PIPELINE_BETWEEN_HOSTS if group.hosts > 1 else 1.0
        start_s = cluster.collective_start_s + protocol.start_s
        yield _time_s(start_s, latency_s, passed_bytes / bytes_per_s, pipeline)


def _tree_times_s(cluster: Cluster, group: RankGroup, size_bytes: int) -> Iterator[float]:
    """Yield the seconds in each protocol: a chain in each host, two trees of half of the bytes each between the hosts.

    A host is a leaf of one of the trees and has two children in the other: it passes the whole tensor up and down, as
    in a ring. Of two hosts each is the other's parent in one of the trees, and passes it once. In a host each link
    carries it up and down, which NCCL counts as half of the link's rate; a further 0.92 that it takes off is not in
    what was measured in two hosts (222.9e9 of bus bandwidth, BM.GPU4.8).
    """
    for protocol in _PROTOCOLS:
        step_s = protocol.tree_step * cluster.peer_latency_s
        latency_s = 2 * (group.per_host - 1) * step_s
        bytes_time_s = 0.0
        if group.per_host > 1:
            bytes_time_s = 2 * size_bytes / (protocol.ring_share * _peer_bytes_per_s(cluster, group))
        if group.hosts > 1:
            latency_s += 2 * ceil(log2(group.hosts)) * _network_step_s(cluster, protocol.tree_network_s)
            host_bytes_per_s = protocol.tree_share * _host_bytes_per_s(cluster, group)
            if protocol is _LL:
                host_bytes_per_s = min(host_bytes_per_s, _LL_NETWORK_BYTES_PER_S)
            passes = 1 if group.hosts == 2 else 2
            bytes_time_s = max(bytes_time_s, passes * size_bytes / host_bytes_per_s)
        yield _time_s(cluster.collective_start_s + protocol.start_s, latency_s, bytes_time_s)


def _switch_time_s(cluster: Cluster, group: RankGroup, size_bytes: int, switch_bytes_per_s: float) -> float:
    latency_s, bytes_time_s = _SWITCH_S, size_bytes / switch_bytes_per_s
    if group.hosts > 1:
        latency_s += 2 * _network_step_s(cluster, _SWITCH_NETWORK_S)
        bytes_time_s = max(bytes_time_s, size_bytes / _host_bytes_per_s(cluster, group))
    return _time_s(cluster.collective_start_s, latency_s, bytes_time_s)


def _send_time_s(cluster: Cluster, group: RankGroup, size_bytes: int) -> float:
    """Return the seconds of the slowest pair of neighbours: of two hosts, if the group is in several."""
    start_s = cluster.collective_start_s + _SIMPLE.start_s
    if group.hosts == 1:
        step_s = _SIMPLE.ring_step * cluster.peer_latency_s
        pair = RankGroup(group.size, 1, 2, 0)
        return _time_s(start_s, step_s, size_bytes / _peer_bytes_per_s(cluster, pair))
    one_rank = RankGroup(group.size, group.hosts, 1, group.sharing)
    step_s = _network_step_s(cluster, _SIMPLE.ring_network_s)
    return _time_s(start_s, step_s, size_bytes / _host_bytes_per_s(cluster, one_rank))


def _all_to_all_time_s(cluster: Cluster, group: RankGroup, size_bytes: int) -> float:
    """Return the seconds in which each rank has sent each other rank its part, within and between hosts at a time.

    Its latency is that of one step, and of starting the others one after another (assumed: as fast as LL's steps, or as
    the host issues them).
    """
    near, far = group.per_host - 1, group.size - group.per_host
    start_s = cluster.collective_start_s + _SIMPLE.start_s
    part_bytes = size_bytes / group.size
    within_s = _time_s(
        start_s,
        _SIMPLE.ring_step * cluster.peer_latency_s + max(near - 1, 0) * cluster.peer_latency_s,
        near * part_bytes / _peer_bytes_per_s(cluster, group) if near else 0.0,
    )
    if not far:
        return within_s
    between_s = _time_s(
        start_s,
        _network_step_s(cluster, _SIMPLE.ring_network_s) + (far - 1) * _ISSUE_S,
        group.per_host * far * part_bytes / _host_bytes_per_s(cluster, group),
    )
    return max(within_s, between_s)


def _time_s(start_s: float, latency_s: float, bytes_time_s: float, pipeline: float = 1.0) -> float:
    return start_s + latency_s + bytes_time_s + pipeline * sqrt(latency_s * bytes_time_s)


def _network_step_s(cluster: Cluster, infiniband_s: float) -> float:
    return infiniband_s - _NETWORK_S + cluster.network_latency_s


def _ring_bytes_per_s(cluster: Cluster, group: RankGroup) -> float:
    """Return the rate of a ring: it enters and leaves each host once, and passes each rank's link once."""
    within = _peer_bytes_per_s(cluster, group) if group.per_host > 1 else inf
    return min(within, _host_bytes_per_s(cluster, group)) if group.hosts > 1 else within


def _peer_bytes_per_s(cluster: Cluster, group: RankGroup) -> float:
    """Return the rate out of a rank to the group's others in its host, of which there is at least one."""
    if not cluster.links_by_pair:
        return cluster.peer_bytes_per_s
    return cluster.peer_bytes_per_s * (group.per_host - 1) / (cluster.joined_devices - 1)


def _host_bytes_per_s(cluster: Cluster, group: RankGroup) -> float:
    """Return the rate at which one group leaves a host: through its ranks' ports, and at its part of all ports.

    Devices have neighbouring ports and use those, at least one: a single device of a host does not reach all of them
    (NVIDIA/nccl-tests#232: one H100 in each host reaches 50e9 bytes/s of four ports with 200e9).
    """
    ports = max(1, cluster.rails * group.per_host // cluster.devices_per_host)
    port_bytes_per_s = cluster.network_bytes_per_s / cluster.rails
    return min(ports * port_bytes_per_s, cluster.joined_hosts * cluster.network_bytes_per_s / group.sharing)
