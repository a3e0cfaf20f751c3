"""How a block's mean over a cluster's devices is made: stages, each on an engine, one after another.

    wherever they meet   out of every device; the host's cores add its devices' blocks; a ring between the hosts; back
    on one root device   out of the others; over the network; into the root; out of the root; over the network; back

The first is moDNN's way (Section 6.2: 2M copies by M devices), with a ring for several hosts; the second its naive way.

Assumed: all devices run one schedule in step, so all copy at once and each has its part of a shared link. Additions on the
root's device are not counted, which add at hundreds of GB/s, and neither are those of the ring, which are far faster than
the network. A host's own memory is no limit to copies. The weights' update is counted nowhere.
"""

from collections.abc import Iterator

from membench.core.cluster import Cluster
from membench.core.cost_model import CostModel

COPY_OUT, COPY_BACK, HOST, NETWORK = "copy out", "copy back", "host", "network"

Stage = tuple[str, float]
"""An engine, and the seconds for which it is busy."""


def exchange_stages(cluster: Cluster, cost: CostModel, size_bytes: int, root: int | None) -> list[Stage]:
    """Return the stages of one block's exchange; none on a device of its own.

    Args:
        cost: copies priced as they are while all devices of the cluster copy at once.
        root: see `AllReduce`.
    """
    if cluster.devices == 1:
        return []
    stages = _meeting(cluster, cost, size_bytes) if root is None else _on_root(cluster, cost, size_bytes)
    return [(engine, time_s) for engine, time_s in stages if time_s]


def _meeting(cluster: Cluster, cost: CostModel, size_bytes: int) -> Iterator[Stage]:
    yield COPY_OUT, cost.offload_time_s(size_bytes)
    yield HOST, cluster.sum_time_s(size_bytes)
    yield NETWORK, cluster.ring_time_s(size_bytes)
    yield COPY_BACK, cost.prefetch_time_s(size_bytes)


def _on_root(cluster: Cluster, cost: CostModel, size_bytes: int) -> Iterator[Stage]:
    others = cluster.devices - 1
    # what takes as long under load as a block with no other device copying
    alone = size_bytes // cluster.devices_per_link
    elsewhere = (cluster.hosts - 1) * cluster.devices_per_host
    everyone = size_bytes if cluster.hosts > 1 or not cluster.shared_link else others * alone
    yield COPY_OUT, cost.offload_time_s(everyone)
    yield NETWORK, cluster.network_time_s(elsewhere * size_bytes)
    yield COPY_BACK, cost.prefetch_time_s(others * alone)
    yield COPY_OUT, cost.offload_time_s(alone)
    yield NETWORK, cluster.network_time_s((cluster.hosts - 1) * size_bytes)
    yield COPY_BACK, cost.prefetch_time_s(everyone)
