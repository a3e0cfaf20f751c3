"""Collectives in a trace: functional ones, as a `DTensor` issues them where it changes its placements.

all_reduce(x); wait_tensor    a task of the collectives' stream; the compute stream waits where its result is used
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from membench.core.errors import UnsupportedModel
from membench.core.graph.call import Value, values_in
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.libraries.torch_internals import (
    COLLECTIVE_NAMESPACES,
    WAIT_FOR_COLLECTIVE,
    OpOverload,
    is_wrapper_subclass,
)

_KINDS = {
    "all_gather_into_tensor": CollectiveKind.ALL_GATHER,
    "all_gather_into_tensor_coalesced": CollectiveKind.ALL_GATHER,
    "reduce_scatter_tensor": CollectiveKind.REDUCE_SCATTER,
    "reduce_scatter_tensor_coalesced": CollectiveKind.REDUCE_SCATTER,
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "all_reduce_": CollectiveKind.ALL_REDUCE,
    "all_reduce_coalesced": CollectiveKind.ALL_REDUCE,
    "all_reduce_coalesced_": CollectiveKind.ALL_REDUCE,
    "all_to_all_single": CollectiveKind.ALL_TO_ALL,
    "shard_dim_alltoall": CollectiveKind.ALL_TO_ALL,
}


def is_wait(operator: OpOverload) -> bool:
    """Return whether an operator waits for a collective, whose result it returns."""
    return str(operator) == WAIT_FOR_COLLECTIVE


def axes_of(module: nn.Module, others: Iterable[Any] = ()) -> dict[str, str]:
    """Return the axis of each group of ranks that a step is divided over, by the group's name.

    Axes are those of a weight's `DeviceMesh`; one without names has ``axis0``, ``axis1`` ...

    Args:
        others: meshes besides those of the module's weights.
    """
    meshes = {
        id(mesh): mesh
        for weight in (*module.parameters(), *module.buffers())
        if is_wrapper_subclass(weight) and (mesh := getattr(weight, "device_mesh", None)) is not None
    } | {id(mesh): mesh for mesh in others}
    return {
        mesh.get_group(number).group_name: mesh.mesh_dim_names[number] if mesh.mesh_dim_names else f"axis{number}"
        for mesh in meshes.values()
        for number in range(mesh.ndim)
    }


def placed_like(weight: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of a `DTensor` in the weight's placements, as by ``fully_shard`` and optimizers."""
    placements = getattr(weight, "placements", None)
    if placements is None or getattr(gradient, "placements", placements) == placements:
        return gradient
    placed: Tensor = gradient.redistribute(placements=placements)  # type: ignore[attr-defined]
    return placed


def collective_of(
    operator: str, args: Sequence[Any], outputs: Sequence[Value | None], axes: Mapping[str, str], layer: str
) -> Collective | None:
    """Return the collective that a call is; None for others.

    Args:
        operator: with its overload, ``"_c10d_functional.all_reduce.default"``.
        args: with values in place of tensors; the last one is the group of ranks, or its name.
        axes: see `axes_of`; another group has its own name as its axis.

    Raises:
        UnsupportedModel: a collective of another kind; names the layer.
    """
    namespace, name, _ = operator.split(".")
    if namespace not in COLLECTIVE_NAMESPACES:
        return None
    if name not in _KINDS:
        raise UnsupportedModel(layer, f"it calls {operator}", f"use one of the collectives {', '.join(_KINDS)}")
    gathers = _KINDS[name] is CollectiveKind.ALL_GATHER
    whole = [value for value in outputs if value] if gathers else values_in(tuple(args))
    group = args[-1] if isinstance(args[-1], str) else args[-1].group_name
    size_bytes = sum(value.extent_bytes for value in whole)
    return Collective(_KINDS[name], size_bytes, axes.get(group, f"group {group}"))
