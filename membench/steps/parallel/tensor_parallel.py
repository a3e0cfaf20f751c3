"""Tensor and sequence parallelism of a predicted step: one rank's weights, by `parallelize_module`."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from membench.core.errors import MembenchError

AXIS = "tp"
"""Axis of the mesh over whose ranks products of matrices and sequences are divided; its ranks have the same samples."""

TensorParallelPlan = Mapping[str, Any]
"""Styles of `torch.distributed.tensor.parallel` by module names, ``*`` for any, as `parallelize_module` takes them."""


@contextmanager
def weights_divided(module: nn.Module, mesh: Any, plan: TensorParallelPlan | None) -> Iterator[None]:
    """Divide a module's weights, and let a block run it; its loss may be of logits in parts, as in `loss_parallel`.

    Args:
        mesh: torch's, of the axis alone.
        plan: None: the module's own, see `plan_of`.

    Raises:
        MembenchError: the plan does not fit the module.
    """
    from torch.distributed.tensor.parallel import loss_parallel  # takes a second to import

    _divide(module, mesh, plan_of(module) if plan is None else plan)
    with loss_parallel():
        yield


def plan_of(module: nn.Module) -> TensorParallelPlan:
    """Return a module's own plan: that of its method ``tensor_parallel_plan``, or of transformers' ``tp_plan``.

    Raises:
        MembenchError: it has none, or one with a style that torch does not have.
    """
    own = getattr(module, "tensor_parallel_plan", None)
    if own is not None:
        plan: TensorParallelPlan = own()
        return plan
    named = getattr(module, "tp_plan", None)
    if not named:
        raise MembenchError(
            f"{type(module).__name__} has no plan of its own for tensor parallelism; pass "
            "tensor_parallel={'blocks.*.query': ColwiseParallel(), ...}, as torch's parallelize_module takes it"
        )
    from membench.steps.parallel.transformers_plan import plan_of_transformers  # takes a second to import

    return plan_of_transformers(module, named)


def is_divided(module: nn.Module) -> bool:
    """Return whether a module has weights of which each rank has a part."""
    return any(hasattr(weight, "device_mesh") for weight in module.parameters())


def check_divided(module: nn.Module, ranks: int) -> None:
    """Refuse a module that is divided over a mesh that is not the axis of a prediction.

    Raises:
        MembenchError: the mesh has another name or size, or is not one of GPUs.
    """
    meshes = (getattr(weight, "device_mesh", None) for weight in module.parameters())
    for mesh in filter(None, meshes):
        if mesh.mesh_dim_names != (AXIS,) or mesh.size() != ranks or mesh.device_type != "cuda":
            raise MembenchError(
                f"the module is divided over {mesh}, and a prediction with parallel={{{AXIS!r}: {ranks}}} needs "
                f"init_device_mesh('cuda', ({ranks},), mesh_dim_names=({AXIS!r},))"
            )


def _divide(module: nn.Module, mesh: Any, plan: TensorParallelPlan) -> None:
    """Divide a module's weights; tied ones stay tied."""
    from torch.distributed.tensor.parallel import parallelize_module

    names: dict[int, list[str]] = {}
    for name, weight in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(weight), []).append(name)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            parallelize_module(module, mesh, dict(plan), src_data_rank=None)
        except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            raise MembenchError(f"the plan of tensor parallelism does not fit the module: {error}") from error
    unresolved = (str(each.message) for each in found if "could not be resolved" in str(each.message))
    if message := next(unresolved, None):
        name = message.split("'")[1]
        raise MembenchError(f"the plan of tensor parallelism names {name!r}, and the module has no such module")
    for first, *others in names.values():
        for name in others:
            owner, _, attribute = name.rpartition(".")
            module.get_submodule(owner).register_parameter(attribute, module.get_parameter(first))
