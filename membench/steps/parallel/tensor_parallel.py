"""Tensor and sequence parallelism of a step that is predicted: a module's weights as one rank has them, by `parallelize_module`."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from membench.core.errors import MembenchError

AXIS = "tp"
"""Axis of the mesh over whose ranks products of matrices and sequences are divided; its ranks have the same samples."""

Plan = Mapping[str, Any]
"""Styles of `torch.distributed.tensor.parallel` by names of modules, in which ``*`` stands for any, as `parallelize_module` takes them."""


@contextmanager
def weights_divided(module: nn.Module, mesh: Any, plan: Plan | None) -> Iterator[None]:
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


def plan_of(module: nn.Module) -> Plan:
    """Return a module's own plan: that of its method ``tensor_parallel_plan``, or of transformers' ``tp_plan``.

    Raises:
        MembenchError: it has none, or one with a style that torch does not have.
    """
    own = getattr(module, "tensor_parallel_plan", None)
    if own is not None:
        plan: Plan = own()
        return plan
    named = getattr(module, "tp_plan", None)
    if not named:
        raise MembenchError(
            f"{type(module).__name__} has no plan of its own for tensor parallelism; pass tensor_parallel={{'blocks.*.query': "
            "ColwiseParallel(), ...}, as torch's parallelize_module takes it"
        )
    return _of_transformers(named)


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


def _of_transformers(named: Mapping[str, str]) -> Plan:
    """Return torch's styles for those of transformers (``src/transformers/integrations/tensor_parallel.py``) that have the same effect."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    styles: dict[str, Callable[[], Any]] = {
        "colwise": ColwiseParallel,
        "rowwise": RowwiseParallel,
        "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
        "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    }
    if unknown := sorted(set(named.values()) - styles.keys()):
        raise MembenchError(
            f"the module's plan has the style {unknown[0]!r}, which is not one of {', '.join(styles)}; pass tensor_parallel with "
            "styles of torch.distributed.tensor.parallel"
        )
    return {name: styles[style]() for name, style in named.items()}


def _divide(module: nn.Module, mesh: Any, plan: Plan) -> None:
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
        raise MembenchError(
            f"the plan of tensor parallelism names {name!r}, and the module has no such module"
        )
    for first, *others in names.values():
        for name in others:
            owner, _, attribute = name.rpartition(".")
            module.get_submodule(owner).register_parameter(attribute, module.get_parameter(first))
