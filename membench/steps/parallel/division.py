"""How ranks divide a step that is predicted before it is captured: the weights of products, sequences, and experts.

A copy of the module without data is divided by torch's own functions under a process group whose ranks do not exist
(torch's backend ``fake``), and captured there: what one rank computes, and which collectives it takes part in, is what
`DTensor` runs.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from membench.capture.trace import ANY_GPU, record
from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.step.workload import Workload
from membench.steps.parallel import context_parallel, expert_parallel, tensor_parallel
from membench.steps.parallel.tensor_parallel import TensorParallelPlan


@dataclass(frozen=True)
class Division:
    """Ranks of three axes; those of the first two have the same samples.

    Attributes:
        tensor: over which the module's weights are divided.
        context: over which each sequence is divided.
        experts: over which experts are divided.
        plan: plan for the weights; None: the module's own, see `membench.steps.parallel.tensor_parallel.plan_of`.
    """

    tensor: int = 1
    context: int = 1
    experts: int = 1
    plan: TensorParallelPlan | None = None

    @property
    def axes(self) -> dict[str, int]:
        """The axes of more than one rank, from the outermost to the innermost."""
        sizes = {
            context_parallel.AXIS: self.context,
            expert_parallel.AXIS: self.experts,
            tensor_parallel.AXIS: self.tensor,
        }
        return {name: size for name, size in sizes.items() if size > 1}

    @contextmanager
    def divided(self, workload: Workload) -> Iterator[Workload]:
        """Let a block capture the first rank's workload; its loss may be of logits in parts (`loss_parallel`).

        Raises:
            MembenchError: this process has joined a process group, or the plan or the sequences do not fit.
        """
        from torch.distributed.device_mesh import init_device_mesh  # takes a second

        axes = self.axes
        with ExitStack() as stack:
            stack.enter_context(_one_rank_of(prod(axes.values())))
            mesh = init_device_mesh("cuda", tuple(axes.values()), mesh_dim_names=tuple(axes))
            undivided, workload = workload, replace(workload, module=_copy_without_data(workload.module))
            if self.tensor > 1:
                of_weights = mesh[tensor_parallel.AXIS]
                stack.enter_context(_plan_blamed(undivided, self.tensor))
                stack.enter_context(tensor_parallel.weights_divided(workload.module, of_weights, self.plan))
            if self.experts > 1:
                of_experts = mesh[expert_parallel.AXIS]
                stack.enter_context(expert_parallel.experts_divided(workload.module, of_experts))
                workload = replace(workload, meshes=(*workload.meshes, of_experts))
            if self.context > 1:
                of_sequences = mesh[context_parallel.AXIS]
                workload = stack.enter_context(context_parallel.sequences_divided(workload, of_sequences))
            yield workload


@contextmanager
def _one_rank_of(count: int) -> Iterator[None]:
    """Be the first rank of a process group whose others do not exist."""
    if dist.is_initialized():
        raise MembenchError(
            "this process has joined a process group, and divided products or sequences are predicted in one of its "
            "own; predict in another process"
        )
    dist.init_process_group("fake", rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _plan_blamed(undivided: Workload, ranks: int) -> Iterator[None]:
    """Say of a module that does not run on its parts, but runs as a whole, that its plan is the cause.

    Raises:
        MembenchError: it is so.
    """
    try:
        yield
    except UnsupportedModel as error:
        failure = error.__cause__
        if failure is None or not _is_captured(undivided):
            raise
        raise MembenchError(
            f"{type(undivided.module).__name__} does not run on the parts that its plan of tensor parallelism gives "
            f"each of {ranks} ranks: layer {error.layer!r} fails ({str(failure).partition(chr(10))[0]}); choose "
            "another number of ranks, or another plan as tensor_parallel"
        ) from error


def _is_captured(workload: Workload) -> bool:
    without_data = replace(workload, module=_copy_without_data(workload.module))
    try:
        record(without_data, ANY_GPU, {}, uses_values=True)
    except MembenchError:
        return False
    return True


def _copy_without_data(module: nn.Module) -> nn.Module:
    def empty(tensor: Tensor) -> Tensor:
        made = torch.empty_like(tensor, device="meta")
        return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made

    tensors = (*module.parameters(), *module.buffers())
    return deepcopy(module, {id(tensor): empty(tensor) for tensor in tensors})
