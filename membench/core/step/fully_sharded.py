"""A module that torch's `fully_shard` (FSDP2) wrapped: how weights are divided, and the module with whole ones.

Its weights are `DTensor`, of which each process has a shard, along the first dimension; hooks of the wrapped modules
gather them. A step binds the shards, gathers by tasks of its own, and leaves the hooks out.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from membench.core.errors import UnsupportedModel
from membench.core.libraries.torch_internals import fsdp_groups, fsdp_reshards_by_default, fsdp_state, module_hooks
from membench.core.step.sharding import REPLICATED, SHARDED, Sharding


@dataclass(frozen=True)
class FullySharded:
    """How the ranks divide a module's weights.

    Attributes:
        groups: the process group of this rank, by axis.
    """

    sharding: Sharding
    groups: dict[str, Any]


def is_fully_sharded(module: nn.Module) -> bool:
    """Return whether `fully_shard` has wrapped a module, or one inside it."""
    return any(_wrapped_modules(module))


def check_whole(module: nn.Module) -> None:
    """Refuse a module that `fully_shard` has wrapped where the ranks are given by name and not by the module.

    Raises:
        UnsupportedModel: it has.
    """
    if is_fully_sharded(module):
        raise UnsupportedModel(
            type(module).__name__,
            "each process has only a part of its weights",
            "pass the module as it was before fully_shard, and cluster=..., parallel={'fsdp': ...}",
        )


def _wrapped_modules(module: nn.Module) -> Iterator[nn.Module]:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # importing it takes a second
    if fsdp is not None:
        yield from (each for each in module.modules() if isinstance(each, fsdp.FSDPModule))


def fully_sharded(module: nn.Module) -> FullySharded | None:
    """Return how the weights of a module that `fully_shard` has wrapped are divided; None if it has wrapped none.

    Raises:
        UnsupportedModel: a weight is divided along another dimension or not at all, or an option cannot be run.
    """
    states = list({id(state): state for state in map(fsdp_state, _wrapped_modules(module))}.values())
    if not states:
        return None
    names = {id(weight): name for name, weight in module.named_parameters()}
    groups = [group for state in states for group in fsdp_groups(state)]
    of_root = {id(group) for group in fsdp_groups(fsdp_state(module))} if states[0] is _state(module) else set()
    named = {id(group): tuple(names[id(each.sharded_param)] for each in group.fsdp_params) for group in groups}
    _check(module, groups, {name for each in named.values() for name in each})
    first = groups[0]
    kept_after_forward = {
        id(group) for group in groups if group.post_forward_mesh_info is None and id(group) not in of_root
    }
    if 0 < len(kept_after_forward) < len(groups) - len(of_root):
        raise UnsupportedModel(
            type(module).__name__,
            "some of its wrapped modules are resharded after the forward pass and others are not",
            "give reshard_after_forward the same value in all calls of fully_shard",
        )
    root_stays = bool(of_root) and (fsdp_reshards_by_default(states[0]) or first.post_forward_mesh_info is None)
    replicas = getattr(first.mesh_info, "replicate_process_group", None)
    of_replicas = {} if replicas is None else {REPLICATED: replicas}
    return FullySharded(
        Sharding(
            first.mesh_info.shard_process_group.size(),
            tuple(named[id(group)] for group in groups if not (root_stays and id(group) in of_root)),
            reshard_after_forward=not kept_after_forward,
            reduce_dtype=first.fsdp_params[0].mp_policy.reduce_dtype,
            replicas="".join(of_replicas),
            axis=SHARDED,
            shapes=tuple((name, tuple(weight.shape)) for name, weight in module.named_parameters()),
        ),
        {SHARDED: first.mesh_info.shard_process_group, **of_replicas},
    )


def _state(module: nn.Module) -> Any:
    return fsdp_state(module) if module in set(_wrapped_modules(module)) else None


def _check(module: nn.Module, groups: list[Any], found: set[str]) -> None:
    """Refuse what a step would not run as torch does.

    Raises:
        UnsupportedModel: see `fully_sharded`.
    """
    for name, weight in module.named_parameters():
        if name not in found:
            raise UnsupportedModel(
                name, "fully_shard has not divided it", "call fully_shard on the whole module as well, last"
            )
        placements: Any = getattr(weight, "placements", ())
        axes = groups[0].mesh_info.mesh.ndim
        if any(getattr(each, "dim", 0) for each in placements) or len(placements) != axes:
            raise UnsupportedModel(
                name,
                f"it is divided as {placements}",
                "divide weights along their first dimension, as fully_shard does by default, and by fully_shard alone",
            )
    for group in groups:
        for each in group.fsdp_params:
            if each.mp_policy.param_dtype is not None or each.offload_to_cpu:
                raise UnsupportedModel(
                    type(module).__name__,
                    "fully_shard was called with param_dtype of a MixedPrecisionPolicy, or with CPUOffloadPolicy",
                    "leave the policy out",
                )


@contextmanager
def whole_weights(module: nn.Module) -> Iterator[None]:
    """Give a module that `fully_shard` wrapped whole weights without data and none of its hooks; leave others."""
    wrapped = list(_wrapped_modules(module))
    if not wrapped:
        yield
        return
    states = set(map(id, map(fsdp_state, wrapped)))
    weights = [
        (layer, name, weight)
        for layer in module.modules()
        for name, weight in layer.named_parameters(recurse=False, remove_duplicate=False)
    ]
    hooks = [(each, dict(each)) for layer in wrapped for each in module_hooks(layer)]
    whole: dict[int, nn.Parameter] = {}
    try:
        for layer, name, weight in weights:
            whole.setdefault(id(weight), _without_data(weight))
            setattr(layer, name, whole[id(weight)])
        for each, before in hooks:
            each.clear()
            each.update({key: hook for key, hook in before.items() if id(_owner(hook)) not in states})
        yield
    finally:
        for layer, name, weight in weights:
            setattr(layer, name, weight)
        for each, before in hooks:
            each.clear()
            each.update(before)


def _without_data(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(
        torch.empty(weight.shape, dtype=weight.dtype, device="meta"), requires_grad=weight.requires_grad
    )


def _owner(hook: Any) -> Any:
    """Return what a hook is a method of, also through the function around it that a list of wrapped modules has."""
    return getattr(hook, "__self__", None) or getattr(getattr(hook, "__wrapped__", None), "__self__", None)
