"""`membench.advise` on several GPUs: which combination of sharding, checkpointing and micro-batch fits, and is the fastest?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from membench.advice.cluster_advice import ClusterAdvice
from membench.advice.cluster_search import ClusterSearch, RankOptions
from membench.core.checks import COUNT, check, choice
from membench.core.cluster import Cluster
from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError
from membench.core.fully_sharded import check_whole
from membench.models.checkpointing import Checkpointing
from membench.steps.arguments import OptimizerLike, as_cluster, as_device, as_update, workload_of
from membench.steps.tensor_parallel import Plan


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
    batch_size: int | None = None,
    parallel: Mapping[str, int] | None = None,
    checkpointing: Sequence[str] | None = None,
    wrapped: Sequence[str] | None = None,
    reduce_dtype: torch.dtype | None = None,
    tensor_parallel: Plan | None = None,
    kernels: str | None = None,
    processes: int | None = None,
    progress: bool = False,
) -> ClusterAdvice:
    """Return the combinations with which a step of training fits several GPUs, the fastest first.

    Args:
        module, loss, batch: see `membench.compile`; the samples of the batch are examples, whose number does not matter.
        cluster: of several GPUs: a name (``"dgx_h100"``) or a description.
        nodes: hosts of the cluster.
        device: None: the cluster's.
        precision, optimizer, wrapped, reduce_dtype, tensor_parallel: see `membench.predict`.
        batch_size: samples in a step for each GPU, in micro-batches; None: any micro-batch, as large as fits, and several through a
            pipeline.
        parallel: sizes of axes, ``{"fsdp": 8}``; None: all products that are the number of GPUs.
        checkpointing: kinds of `Checkpointing` that are tried, ``["none", "full"]``; None: all.
        kernels: ``"inductor"``: each repeated block is given to `torch.compile`, as torchtitan does; ``"eager"``; None: what was given to
            it is predicted as compiled.
        processes: how many predict; None: one for each processor.
        progress: show on stderr what is done.

    Raises:
        MembenchError: an argument is invalid, or contradicts the cluster.
    """
    check(COUNT, nodes=nodes)
    found = as_cluster(cluster)
    if isinstance(device, str) and found.device and device != found.device:
        raise MembenchError(f"device={device!r}: the cluster's GPUs are {found.device}; leave device out")
    kinds = [choice(Checkpointing, "checkpointing", each) for each in checkpointing or Checkpointing]
    options = RankOptions(
        replace(found, hosts=nodes),
        as_device(device or found.device or None),
        cluster if isinstance(cluster, str) else "",
        parallel=parallel,
        wrapped=wrapped,
        reduce_dtype=reduce_dtype,
        checkpointing=tuple(kinds),
        batch_size=batch_size,
        tensor_parallel=tensor_parallel,
        kernels=kernels,
    )
    check_whole(module)
    workload = workload_of(module, loss, batch, precision=precision)
    search = ClusterSearch(workload, options, as_update(optimizer))
    return search.advice(processes=processes, progress=progress)
