"""The ranks of a step on several GPUs: how ``parallel={"fsdp": 8}`` divides it, and the machines that they are on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import nn

from membench.core.errors import MembenchError
from membench.core.graph.precision import as_dtype
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cluster import SINGLE_DEVICE, Cluster
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.mesh import BOTH, Mesh
from membench.core.step.pipeline import PIPELINED, Pipeline, PipelineSchedule
from membench.core.step.sharding import REPLICATED, SHARDED, Sharding
from membench.core.step.stored import stored_weights
from membench.planning.parallel.replication import replicate
from membench.planning.parallel.sharding import shard
from membench.steps.kinds import as_names
from membench.steps.parallel.blocks import groups_of, kept_dtypes, modules_of, pipeline_of, repeated_classes
from membench.steps.parallel.context_parallel import AXIS as CONTEXT
from membench.steps.parallel.division import Division
from membench.steps.parallel.expert_parallel import AXIS as EXPERTS
from membench.steps.parallel.expert_parallel import experts_in
from membench.steps.parallel.tensor_parallel import AXIS as TENSOR
from membench.steps.parallel.tensor_parallel import TensorParallelPlan, check_divided, is_divided, plan_of

AXES = {
    PIPELINED: "stages of a pipeline",
    REPLICATED: "replicas of the shards",
    SHARDED: "sharded weights",
    CONTEXT: "context parallelism, whose ranks have parts of the same sequences, and sharded weights",
    EXPERTS: "expert parallelism, whose ranks have parts of the experts, and sharded other weights",
    TENSOR: "tensor parallelism, whose ranks have the same samples",
}
"""What the axes are, from the outermost to the innermost."""

SHARDING = (SHARDED, CONTEXT, EXPERTS)
"""Axes over all of which weights are in shards; of experts the ranks of the last have different ones."""

_AXES_FOR = {
    "pipeline": (PIPELINED,),
    "stages": (PIPELINED,),
    "wrapped": (PIPELINED, *SHARDING),
    "reshard_after_forward": SHARDING,
    "reduce_dtype": SHARDING,
}
"""Axes without which an option would change nothing."""

_LEFT_OUT = {"nodes": 1, "partition_optimizer": False}
"""Values of options that say the same as if they were not given; of others None."""
_OF_ONE_DEVICE_TOO = ("accumulate",)


@dataclass(frozen=True)
class Ranks:
    """Ranks of which each runs a step on samples of its own.

    Attributes:
        mesh: their cluster, which has their device, and its axes.
        sharding: the weights' sharding; None: each rank has all of them, and gradients are averaged in buckets.
        experts: sharding of the experts' weights, which fewer ranks share than the others; None: all are alike.
        accumulate: micro-batches of a step with shards, one after another.
        pipeline: stages, which pass micro-batches to each other; None: there is one. A single one has the micro-batches
            of a step without shards, whose gradients are exchanged behind the last.
        division: division of the step before it is captured; None: it is captured as it is.
        bucket_bytes: size from which on a bucket of gradients is exchanged; None: those of DistributedDataParallel.
        partitions_update: replicas divide the update, see `membench.planning.parallel.partitioned_update`.
        wrapped: paths of the modules that are gathered one by one, or divided into stages; hooks run around each.
    """

    mesh: Mesh
    sharding: Sharding | None
    accumulate: int = 1
    pipeline: Pipeline | None = None
    division: Division | None = None
    bucket_bytes: int | None = None
    wrapped: tuple[str, ...] = ()
    experts: Sharding | None = None
    partitions_update: bool = False

    @property
    def data_parallel(self) -> int:
        """Number of ranks, or of pipelines of them, that have samples of their own."""
        return prod(self.mesh.sizes.get(axis, 1) for axis in (REPLICATED, SHARDED, EXPERTS))

    def on(self, device: DeviceProfile) -> "Ranks":
        """Return the ranks on another device."""
        return replace(self, mesh=replace(self.mesh, cluster=replace(self.mesh.cluster, device=device)))

    def graph_of_rank(self, graph: TaskGraph) -> TaskGraph:
        """Return a rank's graph, with its shards of weights or its buckets, of a step captured on one device."""
        if self.sharding:
            sharded = shard(graph, self.sharding)
            return shard(sharded, self.experts) if self.experts else sharded
        if REPLICATED in self.mesh.sizes:
            sizes = {"first_bytes": self.bucket_bytes, "bucket_bytes": self.bucket_bytes}
            buckets = {name: size for name, size in sizes.items() if size is not None}
            return replicate(graph, REPLICATED, self.mesh.sizes[REPLICATED], **buckets)
        return graph


ONE_RANK = Ranks(Mesh(SINGLE_DEVICE, ()), sharding=None)
"""A single device, which has the whole step."""


def check_one_device(**options: Any) -> None:
    """Refuse options of several GPUs where there is no cluster.

    Args:
        options: ``nodes`` and those of `ranks_of`; None: not given.
    """
    several = {name: value for name, value in options.items() if name not in _OF_ONE_DEVICE_TOO}
    given = [name for name, value in several.items() if value != _LEFT_OUT.get(name)]
    if given:
        raise MembenchError(
            f"{', '.join(given)}: options of several GPUs; name the cluster as well, as in cluster='dgx_h100'"
        )


def _check_held(mesh: Mesh, shard_axes: Sequence[str], *, reshards: bool, partitions: bool) -> None:
    """Refuse options about what ranks hold that contradict how the mesh divides a step."""
    if mesh.sizes.get(PIPELINED, 1) > 1 and reshards:
        raise MembenchError(
            "the stages of a pipeline keep gathered weights for all micro-batches; leave reshard_after_forward out, or "
            "pp"
        )
    if partitions and (shard_axes or REPLICATED not in mesh.sizes):
        raise MembenchError(
            "partition_optimizer=True divides the update over replicas that have whole weights; set "
            f"parallel={{{REPLICATED!r}: 8}} without {SHARDED}, which divides it as well, or leave it out"
        )


def ranks_of(
    module: nn.Module,
    cluster: Cluster,
    *,
    parallel: Mapping[str, int] | None = None,
    accumulate: int = 1,
    wrapped: str | Sequence[str] | None = None,
    reshard_after_forward: bool | None = None,
    reduce_dtype: torch.dtype | str | None = None,
    pipeline: str | None = None,
    stages: int | None = None,
    copies_out: bool = True,
    in_between: bool = False,
    tensor_parallel: TensorParallelPlan | None = None,
    end_blocks: int = 1,
    bucket_bytes: int | None = None,
    partition_optimizer: bool = False,
) -> Ranks:
    """Return the ranks of a step, of which each shard has the precision of the module's weight; see `membench.predict`.

    Args:
        cluster: with all its hosts, and with their device.
        parallel: None: all GPUs divide the weights.
        wrapped: names of classes whose modules are gathered one by one; None: those of which a list of modules has
            several.
        pipeline, stages: see `membench.predict`.
        reduce_dtype: see `membench.predict`.
        copies_out, in_between: see `Sharding`.
        tensor_parallel: see `Division.plan`; of a module that is divided already it is not needed.
        end_blocks: see `stage_begins`.
        bucket_bytes: see `Ranks`.
        partition_optimizer: see `membench.predict`.

    Raises:
        MembenchError: there is no such axis, the sizes do not fit the cluster, or an option is for an axis that is not
            there.
    """
    parallel = parallel or {SHARDED: cluster.devices}
    summed_in = as_dtype(reduce_dtype, "reduce_dtype")
    mesh = Mesh(cluster, _axes_of(parallel))
    _check_axes_for(
        parallel,
        pipeline=pipeline,
        stages=stages,
        wrapped=wrapped,
        reshard_after_forward=reshard_after_forward,
        reduce_dtype=reduce_dtype,
    )
    stage_ranks = mesh.sizes.get(PIPELINED, 1)
    shard_axes = [axis for axis in mesh.sizes if axis in SHARDING]
    _check_held(mesh, shard_axes, reshards=bool(reshard_after_forward), partitions=partition_optimizer)
    classes = repeated_classes(module) if wrapped is None else frozenset(as_names(wrapped))
    cut, sharding, experts = None, None, None
    if stage_ranks > 1:
        order = pipeline or PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
        of_shards = summed_in if shard_axes else None
        cut = pipeline_of(module, classes, stage_ranks, order, stages, accumulate, of_shards, end_blocks)
    elif accumulate > 1 and not shard_axes:
        cut = Pipeline(1, (), accumulate)
    if cut is not None:
        accumulate = 1
    if shard_axes:
        sharding, experts = _shardings(
            module,
            mesh,
            shard_axes,
            classes,
            reshard_after_forward=cut is None if reshard_after_forward is None else reshard_after_forward,
            reduce_dtype=summed_in,
            copies_out=copies_out,
            accumulates=accumulate > 1,
            in_between=in_between,
        )
    division = _division(module, parallel, tensor_parallel)
    paths = modules_of(module, classes) if shard_axes or stage_ranks > 1 else ()
    return Ranks(mesh, sharding, accumulate, cut, division, bucket_bytes, paths, experts, partition_optimizer)


def _shardings(
    module: nn.Module, mesh: Mesh, axes: Sequence[str], classes: frozenset[str], **options: Any
) -> tuple[Sharding, Sharding | None]:
    """Return the sharding of weights over some axes, and that of experts' weights, None if like the others.

    Args:
        classes: classes of the modules that are gathered one by one.
        options: see `Sharding`.
    """
    sharding = Sharding(
        prod(mesh.sizes[axis] for axis in axes),
        groups_of(module, classes),
        kept_dtypes=kept_dtypes(module),
        replicas=REPLICATED if REPLICATED in mesh.sizes else "",
        axis=BOTH.join(axes),
        shapes=tuple((name, tuple(weight.shape)) for name, weight in stored_weights(module).items()),
        **options,
    )
    return _with_experts_apart(module, sharding, mesh) if EXPERTS in mesh.sizes else (sharding, None)


def _with_experts_apart(module: nn.Module, sharding: Sharding, mesh: Mesh) -> tuple[Sharding, Sharding]:
    """Return the sharding of all weights but those of experts, and that of the latter, over all axes but their own."""
    groups = [
        tuple(f"{path}.{name}" for name, _ in each.named_parameters()) for path, each in experts_in(module).items()
    ]
    of_experts = frozenset(name for names in groups for name in names)
    others = frozenset(name for name, _ in module.named_parameters()) - of_experts
    axes = [axis for axis in sharding.axis.split(BOTH) if axis != EXPERTS]
    grouped = (tuple(name for name in names if name in others) for names in sharding.groups)
    ranks = prod(mesh.sizes[axis] for axis in axes)
    fewest = min(len(next(each.parameters())) for each in experts_in(module).values())
    return replace(sharding, groups=tuple(filter(None, grouped)), members=others), replace(
        sharding,
        ranks=ranks,
        groups=tuple(groups),
        axis=BOTH.join(axes),
        members=of_experts,
        shapes=(),  # those of a rank's part are known when it is captured
        dimension=int(ranks * mesh.sizes[EXPERTS] > fewest),  # as torchtitan
    )


def _axes_of(parallel: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the axes of more than one rank, in the order of `AXES`.

    Raises:
        MembenchError: there is no such axis.
    """
    if unknown := {axis for axis, size in parallel.items() if size > 1} - AXES.keys():
        raise MembenchError(
            f"there is no axis {', '.join(sorted(unknown))} of parallel; there are "
            + ", ".join(f"{axis} ({what})" for axis, what in AXES.items())
        )
    needed = {SHARDED} if parallel.get(EXPERTS, 1) > 1 else set()  # over which experts are in shards
    return tuple((axis, parallel.get(axis, 1)) for axis in AXES if parallel.get(axis, 1) > 1 or axis in needed)


def _check_axes_for(parallel: Mapping[str, int], **options: Any) -> None:
    """Refuse options without effect; a named axis of one rank stays, so that sizes can be swept over.

    Args:
        options: options in `_AXES_FOR`; None: not given.
    """
    for name, value in options.items():
        if value is not None and not parallel.keys() & set(_AXES_FOR[name]):
            axes = " or ".join(_AXES_FOR[name])
            raise MembenchError(
                f"{name} is for ranks along an axis {axes}, but parallel={dict(parallel)}; leave it out"
            )


def _division(module: nn.Module, parallel: Mapping[str, int], plan: TensorParallelPlan | None) -> Division | None:
    tensor, context, experts = (parallel.get(axis, 1) for axis in (TENSOR, CONTEXT, EXPERTS))
    if is_divided(module):
        check_divided(module, tensor)
        if context > 1 or experts > 1:
            raise MembenchError(
                f"parallel has {CONTEXT if context > 1 else EXPERTS}, and the module is divided already; pass one that "
                f"is not, and tensor_parallel"
            )
    if tensor == 1 or is_divided(module):
        if plan is not None:
            raise MembenchError(
                f"tensor_parallel is a plan for the ranks of an axis {TENSOR!r}; set parallel={{{TENSOR!r}: 8}} and "
                "pass a module that is not divided"
            )
        return Division(context=context, experts=experts) if context > 1 or experts > 1 else None
    if plan is None:
        plan_of(module)  # refuses a module without one; its names are of layers, of which a copy may have fewer
    return Division(tensor, context, experts, plan)
