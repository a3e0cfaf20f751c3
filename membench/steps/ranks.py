"""The ranks of a step on several GPUs: how ``parallel={"fsdp": 8}`` divides it, and the machines that they are on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from membench.core.cluster import Cluster
from membench.core.errors import MembenchError
from membench.core.mesh import Mesh
from membench.core.sharding import Sharding
from membench.steps.tensor_parallel import AXIS as TENSOR
from membench.steps.tensor_parallel import Plan, TensorParallel, check_divided, is_divided, plan_of

SHARDED, REPLICATED = "fsdp", "dp"
"""Axes of the mesh: over whose ranks weights are divided, and over whose ranks these shards are repeated."""

AXES = {
    REPLICATED: "replicas of the shards",
    SHARDED: "sharded weights",
    TENSOR: "tensor parallelism, whose ranks have the same samples",
}
"""What the axes are, from the outermost to the innermost."""


@dataclass(frozen=True)
class Ranks:
    """Ranks of which each runs a step on samples of its own.

    Attributes:
        mesh: their cluster, and its axes.
        sharding: of the weights; None: each rank has all of them, and gradients are averaged in buckets.
        accumulate: micro-batches of a step.
        tensor: how the module is divided before it is captured; None: it is captured as it is.
    """

    mesh: Mesh
    sharding: Sharding | None
    accumulate: int = 1
    tensor: TensorParallel | None = None

    @property
    def batches(self) -> int:
        """How many batches a step consists of, each of which ranks of tensor parallelism share."""
        return self.mesh.cluster.devices // self.mesh.sizes.get(TENSOR, 1)


def ranks_of(
    module: nn.Module,
    cluster: Cluster,
    *,
    nodes: int = 1,
    parallel: Mapping[str, int] | None = None,
    accumulate: int = 1,
    wrapped: Sequence[str] | None = None,
    reshard_after_forward: bool = True,
    reduce_dtype: torch.dtype | None = None,
    copies_out: bool = True,
    in_between: bool = False,
    tensor_parallel: Plan | None = None,
) -> Ranks:
    """Return the ranks of a step, whose shards have the precision of the module's weights; see `membench.predict`.

    Args:
        parallel: None: all GPUs divide the weights.
        wrapped: names of classes whose modules are gathered one by one; None: those of which a list of modules has several.
        reduce_dtype, copies_out, in_between: see `Sharding`.
        tensor_parallel: see `TensorParallel`; of a module that is divided already it is not needed.

    Raises:
        MembenchError: there is no such axis, or the sizes do not fit the cluster.
    """
    parallel = parallel or {SHARDED: nodes * cluster.devices_per_host}
    if unknown := {axis for axis, size in parallel.items() if size > 1} - AXES.keys():
        raise MembenchError(
            f"there is no axis {', '.join(sorted(unknown))} of parallel; there are "
            + ", ".join(f"{axis} ({what})" for axis, what in AXES.items())
        )
    axes = tuple((axis, parallel[axis]) for axis in AXES if parallel.get(axis, 1) > 1)
    mesh = Mesh(replace(cluster, hosts=nodes), axes)
    sharding = None
    if parallel.get(SHARDED, 1) > 1:
        classes = repeated_classes(module) if wrapped is None else frozenset(wrapped)
        sharding = Sharding(
            parallel[SHARDED],
            groups_of(module, classes),
            reshard_after_forward,
            next((weight.dtype for weight in module.parameters() if weight.is_floating_point()), None),
            reduce_dtype,
            copies_out,
            REPLICATED if parallel.get(REPLICATED, 1) > 1 else "",
            accumulates=accumulate > 1,
            in_between=in_between,
        )
    elif accumulate > 1:
        raise MembenchError(
            "several micro-batches are predicted for sharded weights alone; leave accumulate out, or set fsdp"
        )
    return Ranks(mesh, sharding, accumulate, _tensor_parallel(module, parallel, tensor_parallel))


def _tensor_parallel(
    module: nn.Module, parallel: Mapping[str, int], plan: Plan | None
) -> TensorParallel | None:
    ranks = parallel.get(TENSOR, 1)
    if is_divided(module):
        check_divided(module, ranks)
    if ranks == 1 or is_divided(module):
        if plan is not None:
            raise MembenchError(
                f"tensor_parallel is a plan for the ranks of an axis {TENSOR!r}; set parallel={{{TENSOR!r}: 8}} and pass a module that "
                "is not divided"
            )
        return None
    return TensorParallel(ranks, plan_of(module) if plan is None else plan)


def repeated_classes(module: nn.Module) -> frozenset[str]:
    """Return the names of classes of which a list of modules has several: the blocks of a network."""
    found: Counter[str] = Counter()
    for parent in module.modules():
        if isinstance(parent, nn.ModuleList | nn.Sequential):
            kinds = Counter(type(child).__name__ for child in parent)
            found |= Counter({kind: number for kind, number in kinds.items() if number > 1})
    return frozenset(found)


def groups_of(module: nn.Module, classes: frozenset[str]) -> tuple[tuple[str, ...], ...]:
    """Return the names of the weights of each module of some classes, without those of modules inside it that are wrapped too.

    Raises:
        MembenchError: the module has no module of such a class.
    """
    wrapped = {name for name, each in module.named_modules() if name and type(each).__name__ in classes}
    if not wrapped:
        raise MembenchError(
            f"{type(module).__name__} has no module of a class {', '.join(sorted(classes)) or 'that is repeated'}; name the classes "
            "whose modules are gathered one by one"
        )
    groups: dict[str, list[str]] = {}
    for weight, _ in module.named_parameters():
        parts = weight.split(".")
        owners = (".".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1))
        owner = next((name for name in owners if name in wrapped), None)
        if owner is not None:
            groups.setdefault(owner, []).append(weight)
    return tuple(map(tuple, groups.values()))
