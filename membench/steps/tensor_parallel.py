"""Tensor and sequence parallelism of a step that is predicted: the module as one rank has it, by torch's `parallelize_module`.

A copy of the module without data is divided under a process group whose ranks do not exist (torch's backend ``fake``), and captured
there: what the rank computes and which collectives it takes part in is what `DTensor` runs.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from membench.core.errors import MembenchError
from membench.core.workload import Workload

AXIS = "tp"
"""Axis of the mesh over whose ranks products of matrices and sequences are divided; its ranks have the same samples."""

Plan = Mapping[str, Any]
"""Styles of `torch.distributed.tensor.parallel` by names of modules, in which ``*`` stands for any, as `parallelize_module` takes them."""


@dataclass(frozen=True)
class TensorParallel:
    """How a module is divided.

    Attributes:
        ranks: over which it is divided.
        plan: None: the module's own, see `plan_of`.
    """

    ranks: int
    plan: Plan | None = None

    @contextmanager
    def divided(self, workload: Workload) -> Iterator[Workload]:
        """Let a block capture a workload as the first rank has it; its loss may be of logits in parts, as in `loss_parallel`.

        Raises:
            MembenchError: this process has joined a process group, or the plan does not fit the module.
        """
        # both take a second to import
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import loss_parallel

        plan = plan_of(workload.module) if self.plan is None else dict(self.plan)
        with _one_rank_of(self.ranks), loss_parallel():
            mesh = init_device_mesh("cuda", (self.ranks,), mesh_dim_names=(AXIS,))
            module = _copy_without_data(workload.module)
            _divide(module, mesh, plan)
            yield replace(workload, module=module)


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


@contextmanager
def _one_rank_of(count: int) -> Iterator[None]:
    """Be the first rank of a process group whose others do not exist."""
    if dist.is_initialized():
        raise MembenchError(
            "this process has joined a process group, and tensor parallelism is predicted in one of its own; predict in another "
            "process"
        )
    dist.init_process_group("fake", rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _copy_without_data(module: nn.Module) -> nn.Module:
    def empty(tensor: Tensor) -> Tensor:
        made = torch.empty_like(tensor, device="meta")
        return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made

    tensors = (*module.parameters(), *module.buffers())
    return deepcopy(module, {id(tensor): empty(tensor) for tensor in tensors})


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
