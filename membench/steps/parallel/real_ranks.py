"""Ranks of a real step: processes of torch's `fully_shard` or `DistributedDataParallel`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.graph.task_graph import TaskGraph
from membench.core.libraries import distributed
from membench.core.step.fully_sharded import fully_sharded
from membench.core.step.sharding import REPLICATED, SHARDED
from membench.planning.parallel.replication import FIRST_BUCKET_BYTES, replicate
from membench.planning.parallel.sharding import shard
from membench.steps.parallel.blocks import repeated_classes
from membench.steps.real.kept_steps import Shapes


@dataclass(frozen=True)
class RealRanks:
    """Processes of which each runs a step on samples of its own.

    Attributes:
        wrapper: torch's wrapper that has divided the module; shown in errors.
        of_rank: rewrites the graph of one device into that of a rank.
        groups: process groups of this rank by axis.
        begin: called before each step; None: nothing is.
    """

    wrapper: str
    of_rank: Callable[[TaskGraph], TaskGraph]
    groups: dict[str, Any]
    begin: Callable[[], None] | None = None

    def graph_of_rank(self, graph: TaskGraph, batch_size: int) -> TaskGraph:
        """Return the graph of a rank.

        Raises:
            MembenchError: it is that of a micro-batch, or has collectives that can only be simulated.
        """
        if graph.batch_size != batch_size:
            raise MembenchError(
                f"a step under {self.wrapper} runs its whole batch; call it for each micro-batch, whose gradients it "
                "adds up, or choose another strategy"
            )
        sharded = self.of_rank(graph)
        if any(task.collective and task.call is None for task in sharded.tasks):
            raise MembenchError(
                f"a step under {self.wrapper} runs with weights of one of the dtypes float32 and bfloat16, and "
                "replicas of shards with one dtype for sums and weights; convert the module, or leave reduce_dtype out"
            )
        return sharded


def check_options(
    wrapper: str, backend: str, exchange: str | None, precision: str | None, shapes: str, *, channels_last: bool
) -> None:
    """Refuse options of `compile` that do not go together with processes that a wrapper of the module has joined.

    Raises:
        MembenchError: names the option.
    """
    if backend != "cpu":
        raise MembenchError(
            f"a step under {wrapper} runs with backend='cpu'; membench.predict(..., cluster=...) predicts one on GPUs"
        )
    given = {"exchange": exchange, "channels_last": channels_last or None}
    given["precision"] = None if (precision or "amp").startswith("amp") else precision
    given["shapes"] = None if shapes == Shapes.FIXED else shapes
    if option := next((name for name, value in given.items() if value is not None), None):
        raise MembenchError(f"{option}={given[option]!r} is not for a module under {wrapper}; leave it out")


def real_ranks(module: nn.Module) -> tuple[nn.Module, RealRanks | None]:
    """Return the module that a step computes, and the ranks that torch's wrapper of it has joined; None without one.

    Raises:
        UnsupportedModel: the wrapper has options that a step does not run.
    """
    if isinstance(module, DistributedDataParallel):
        return module.module, _replicas(module)
    found = fully_sharded(module)
    if found is None:
        return module, None
    return module, RealRanks("fully_shard", partial(shard, sharding=found.sharding), found.groups)


def _replicas(wrapped: DistributedDataParallel) -> RealRanks:
    group = wrapped.process_group
    if getattr(wrapped, "bucket_bytes_cap_list", ()):
        raise UnsupportedModel(
            type(wrapped.module).__name__,
            "its DistributedDataParallel has a list of sizes of buckets",
            "give bucket_cap_mb one number",
        )
    limit_bytes = wrapped.bucket_bytes_cap
    first_bytes = FIRST_BUCKET_BYTES if wrapped.bucket_bytes_cap_default else limit_bytes
    of_rank = partial(replicate, axis=REPLICATED, ranks=group.size(), first_bytes=first_bytes, bucket_bytes=limit_bytes)
    buffers = list(wrapped.module.buffers()) if wrapped.broadcast_buffers else []
    begin = partial(distributed.broadcast, buffers, group) if buffers else None
    return RealRanks("DistributedDataParallel", of_rank, {REPLICATED: group}, begin)


def divided(module: nn.Module, parallel: Mapping[str, int]) -> nn.Module:
    """Return a module that torch's wrapper has divided over all processes.

    Args:
        parallel: ranks by axis, as `membench.predict` takes them; modules of classes that a list of modules has several
            of are gathered one by one.

    Raises:
        MembenchError: there is no such axis, or the processes are not as many.
    """
    ranks = {axis: parallel[axis] for axis in (REPLICATED, SHARDED) if parallel.get(axis, 1) > 1}
    processes = distributed.joined().count
    if set(parallel) - {REPLICATED, SHARDED} or prod(parallel.values()) != processes or not ranks:
        raise MembenchError(
            f"parallel={dict(parallel)} is not for the {processes} processes that torchrun has started; give {SHARDED} "
            f"(sharded weights) and {REPLICATED} (replicas of the shards), whose product is {processes}"
        )
    if SHARDED not in ranks:
        return DistributedDataParallel(module)
    from torch.distributed.device_mesh import init_device_mesh  # with fully_shard it takes a second
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", tuple(ranks.values()), mesh_dim_names=tuple(ranks))
    classes = repeated_classes(module)
    for layer in list(module.modules()):
        if layer is not module and type(layer).__name__ in classes and any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module
