"""Refusals of arguments of `membench.compile` that do not go together."""

import torch
from torch import nn

from membench.backends.real import real_backends
from membench.core.checks import choice
from membench.core.errors import MembenchError, UnsupportedModel, unknown
from membench.core.hardware.cluster import SINGLE_DEVICE
from membench.core.step.kernels import Kernels
from membench.steps.keywords import CompileKeywords
from membench.steps.parallel.tensor_parallel import is_divided
from membench.steps.real.kept_steps import Shapes
from membench.steps.request import StepRequest


def check_together(backend: str, shapes: str, options: CompileKeywords) -> None:
    """Refuse a backend that does not exist, arguments that are not for it, and limits that a step cannot keep."""
    if backend not in (names := (*real_backends(), "simulated")):
        raise MembenchError(unknown("backend", backend, names))
    cuda_graph, optimizer, host_memory = (options.get(name) for name in ("cuda_graph", "optimizer", "host_memory"))
    if cuda_graph and backend != "cuda":
        raise MembenchError("cuda_graph=True needs backend='cuda'; leave it out")
    any_shape = choice(Shapes, "shapes", shapes) is Shapes.ANY
    is_shared = optimizer is None or isinstance(optimizer, torch.optim.Optimizer)
    if any_shape and (backend == "simulated" or options.get("exchange") or not is_shared):
        raise MembenchError(
            "shapes='any' is for real steps of one process; with an optimizer, pass an instance of torch.optim, which "
            "all shapes share"
        )
    described = [options.get(name) for name in ("device", "cluster", "machine")]
    if backend != "simulated" and any(each not in (None, SINGLE_DEVICE) for each in described):
        raise MembenchError(
            f"device, cluster and machine are for backend='simulated', but the backend is {backend!r}; leave them out"
        )
    if options.get("disk") is not None and (backend == "simulated" or host_memory is None):
        raise MembenchError(
            "disk is for a real step with a limit of host_memory, beyond which blocks go there; give host_memory, or "
            "leave disk out"
        )
    if host_memory is not None and cuda_graph:
        raise MembenchError("a CUDA graph does not contain work of the host; leave cuda_graph or host_memory out")
    if host_memory is not None and any_shape:
        raise MembenchError(
            "shapes='any' makes a step for each shape, and one step alone can keep the optimizer's states on a disk; "
            "leave shapes or host_memory out"
        )


def check_kernels(kernels: Kernels | None, backend: str, *, is_shared: bool) -> None:
    """Refuse compiled kernels where they do not run.

    Args:
        is_shared: whether several processes share the module.
    """
    if kernels is Kernels.INDUCTOR and (backend not in ("cpu", "simulated") or is_shared):
        raise MembenchError(
            f"kernels={kernels} run on one CPU (backend='cpu') with a module that no process shares, or are simulated; "
            "leave kernels out"
        )


def check_placement(module: nn.Module, target: torch.device) -> None:
    """Refuse a module that has weights on another device than the host and the one where it is to run.

    Raises:
        UnsupportedModel: names the weight.
    """
    for name, weight in module.named_parameters():
        if weight.device.type not in ("cpu", target.type):
            raise UnsupportedModel(
                name, f"it is on {weight.device}, not on {target}", "move the module there, or simulate it"
            )


def check_divided(module: nn.Module, request: StepRequest) -> None:
    """Refuse what belongs to ranks that have all weights."""
    if not is_divided(module):
        return
    if request.exchange:
        raise MembenchError(
            "exchange averages gradients over all processes, which have different parts of them; leave it out"
        )
    if request.optimizer is not None:
        raise MembenchError(
            "an optimizer of weights in parts takes part in collectives of its own; leave optimizer out, and step it "
            "after the step"
        )
