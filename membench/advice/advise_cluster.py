"""`membench.advise` on several GPUs: which combination of parallelism, checkpointing and micro-batch fits, and is the fastest?"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from membench.advice.cluster_advice import ClusterAdvice
from membench.advice.cluster_search import ClusterSearch
from membench.advice.rank_options import RankOptions
from membench.core.checks import COUNT, check, choice
from membench.core.cluster import Cluster
from membench.core.device import DeviceProfile, as_device
from membench.core.errors import MembenchError
from membench.core.fully_sharded import check_whole
from membench.core.machine import Machine
from membench.models.checkpointing import Checkpointing
from membench.steps.arguments import OptimizerLike, as_cluster, as_machine, as_update, workload_of


def advise_cluster(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    cluster: str | Cluster,
    nodes: int = 1,
    device: str | DeviceProfile | None = None,
    precision: str | None = None,
    optimizer: OptimizerLike = None,
    machine: str | Machine | None = None,
    allocator: str | None = None,
    checkpointing: Sequence[str] | None = None,
    processes: int | None = None,
    progress: bool = False,
    **ranks: Any,
) -> ClusterAdvice:
    """Return the combinations with which a step of training fits several GPUs, the fastest first.

    Args:
        module, loss, batch: see `membench.compile`; the samples of the batch are examples, whose number does not matter.
        cluster, nodes: of several GPUs: a name (``"dgx_h100"``) or a description, and how many hosts it has.
        device: None: the cluster's.
        precision, optimizer, machine, allocator: see `membench.predict`; processes, progress: see `membench.advise`.
        checkpointing: kinds of `Checkpointing` that are tried, ``["none", "full"]``; None: all.
        ranks: ``batch_size``, ``parallel``, ``wrapped``, ``reduce_dtype``, ``tensor_parallel`` and ``kernels``; see `RankOptions`.

    Raises:
        MembenchError: an argument is invalid, or contradicts the cluster.
    """
    check(COUNT, nodes=nodes)
    own, name = as_cluster(cluster), cluster if isinstance(cluster, str) else ""
    found = as_cluster(own, nodes=nodes, device=device, allocator=allocator)
    if isinstance(device, str) and own.device and as_device(device) != own.profile:
        raise MembenchError(f"device={device!r}: the cluster's GPUs are {own.device_name}; leave device out")
    kinds = tuple(choice(Checkpointing, "checkpointing", each) for each in checkpointing or Checkpointing)
    options = RankOptions(found, name, checkpointing=kinds, machine=as_machine(machine), **ranks)
    check_whole(module)
    work = workload_of(module, loss, batch, precision=precision)
    search = ClusterSearch(work, options, as_update(optimizer))
    return search.advice(processes=processes, progress=progress)
