"""Simulated mean of a block over a cluster's devices: stages, each on an engine, one after another.

    in host memory       out of every device; the host's cores add its devices' blocks; a ring between the hosts; back
    on one root device   out of the others; over the network; into the root; out of the root; over the network; back

The first is moDNN's method (Section 6.2: 2M copies by M devices), with a ring for several hosts; the second its
baseline. Devices that reach each other, as those of a cluster with `Cluster.peer_bytes_per_s`, average by an all-reduce
in place of both, as NCCL's.

Assumptions: all devices run one schedule in step, so all copy at once and each has its share of a shared link.
Additions on the root's device, at hundreds of GB/s, and those of the ring, which are far faster than the network, are
not counted. A host's memory does not limit copies. The weights' update is not counted.
"""

from collections.abc import Iterator
from math import isfinite

from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.cost_model import CostModel
from membench.core.hardware.mesh import Mesh
from membench.cost.collectives import collective_time_s

COPY_OUT, COPY_BACK, HOST, NETWORK, PEERS = "copy out", "copy back", "host", "network", "peers"
_REPLICAS = "replicas"

Stage = tuple[str, float]
"""An engine and the seconds for which it is busy."""


def exchange_stages(cluster: Cluster, cost: CostModel, size_bytes: int, root: int | None) -> list[Stage]:
    """Return the stages of one block's exchange; none for a single device.

    Args:
        cost: its copies take the time that they take while all devices of the cluster copy at once.
        root: see `AllReduce`.
    """
    if cluster.devices == 1:
        return []
    if isfinite(cluster.peer_bytes_per_s):
        group = Mesh(cluster, ((_REPLICAS, cluster.devices),)).group(_REPLICAS)
        return [
            (PEERS, collective_time_s(cluster, group, Collective(CollectiveKind.ALL_REDUCE, size_bytes, _REPLICAS)))
        ]
    stages = _on_host(cluster, cost, size_bytes) if root is None else _on_root(cluster, cost, size_bytes)
    return [(engine, time_s) for engine, time_s in stages if time_s]


def _on_host(cluster: Cluster, cost: CostModel, size_bytes: int) -> Iterator[Stage]:
    yield COPY_OUT, cost.offload_time_s(size_bytes)
    yield HOST, cluster.sum_time_s(size_bytes)
    yield NETWORK, cluster.ring_time_s(size_bytes)
    yield COPY_BACK, cost.prefetch_time_s(size_bytes)


def _on_root(cluster: Cluster, cost: CostModel, size_bytes: int) -> Iterator[Stage]:
    others = cluster.devices - 1
    # bytes that take as long on a loaded link as a block takes on an unloaded one
    unloaded = size_bytes // cluster.devices_per_link
    remote_devices = (cluster.hosts - 1) * cluster.devices_per_host
    # the root has a place on its link but does not use it, so a link of all devices carries one block less
    loaded = others * unloaded if cluster.devices_per_link == cluster.devices else size_bytes
    yield COPY_OUT, cost.offload_time_s(loaded)
    yield NETWORK, cluster.network_time_s(remote_devices * size_bytes)
    yield COPY_BACK, cost.prefetch_time_s(others * unloaded)
    yield COPY_OUT, cost.offload_time_s(unloaded)
    yield NETWORK, cluster.network_time_s((cluster.hosts - 1) * size_bytes)
    yield COPY_BACK, cost.prefetch_time_s(loaded)
