"""`membench.advise` on several GPUs: the fastest fitting parallelism, checkpointing and micro-batch."""

from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from torch import Tensor, nn

from membench.advice.cluster.advice import ClusterAdvice
from membench.advice.cluster.keywords import CombinationKeywords
from membench.advice.cluster.rank_options import RankOptions
from membench.advice.cluster.search import ClusterSearch
from membench.core.errors import MembenchError
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.device import as_device
from membench.core.step.fully_sharded import check_whole
from membench.steps.arguments import Batch, as_cluster, as_update, workload_of
from membench.steps.keywords import (
    DeviceKeywords,
    HardwareKeywords,
    HostKeywords,
    ProcessKeywords,
    ProgramKeywords,
    check_keywords,
)
from membench.steps.request import Hardware


class ClusterKeywords(ProgramKeywords, DeviceKeywords, HostKeywords, ProcessKeywords, CombinationKeywords, total=False):
    """Options of `membench.advise` with a cluster.

    Attributes:
        processes, progress: see `membench.advise`.
    """

    processes: int | None
    progress: bool


def advise_cluster(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: Batch,
    cluster: str | Cluster,
    options: Mapping[str, Any],
) -> ClusterAdvice:
    """Return the combinations with which a step of training fits several GPUs, the fastest first.

    Args:
        module, loss, batch: see `membench.compile`; the samples of the batch are examples, whose number does not
            matter.
        cluster: a name (``"dgx_h100"``) or a description.
        options: `ClusterKeywords`.

    Raises:
        MembenchError: an argument is invalid, or contradicts the cluster.
    """
    if unknown := options.keys() - get_type_hints(ClusterKeywords).keys():
        raise MembenchError(f"{', '.join(sorted(unknown))}: not an option of advise on several GPUs; leave it out")
    check_keywords(ClusterKeywords, options, "advise")
    check_keywords(HardwareKeywords, {"cluster": cluster}, "advise")
    device = options.get("device")
    own, name = as_cluster(cluster), cluster if isinstance(cluster, str) else ""
    hardware = Hardware.of({"nodes": 1, **options, "cluster": own})
    if isinstance(device, str) and own.device and as_device(device) != own.profile:
        raise MembenchError(f"device={device!r}: the cluster's GPUs are {own.device_name}; leave device out")
    asked = {key: value for key, value in options.items() if key in _OF_RANKS}
    ranks = RankOptions.of(hardware.cluster, name, hardware.machine, asked)
    check_whole(module)
    work = workload_of(module, loss, batch, precision=options.get("precision"))
    search = ClusterSearch(work, ranks, as_update(options.get("optimizer")))
    return search.advice(processes=options.get("processes"), progress=options.get("progress", False))


_OF_RANKS = {"kernels", *get_type_hints(CombinationKeywords)}
"""Options that `RankOptions` has too."""
