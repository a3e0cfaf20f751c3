"""Modules that cannot become a step, because of their class or that of their weights, or of what surrounds them."""

from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from membench.core.errors import UnsupportedModel
from membench.core.libraries.distributed import joined
from membench.core.step.arguments import has_own_functions, has_own_operators, is_dense

_PASS_INNER = "pass the module inside it, with exchange='as_made'"


def check_module(name: str, module: nn.Module) -> None:
    """Refuse a module that is distributed or loaded in parts, TorchScript, or has weights other than dense tensors.

    Args:
        name: the module's own name, for errors.

    Raises:
        UnsupportedModel: names the layer or the weight.
    """
    for path, layer in module.named_modules():
        _check_layer(path or name, layer)
    for tensor_name, tensor in chain(module.named_parameters(), module.named_buffers()):
        _check_tensor(tensor_name, tensor)


def _check_layer(path: str, layer: nn.Module) -> None:
    if isinstance(layer, nn.DataParallel | DistributedDataParallel):
        raise UnsupportedModel(path, "it distributes its batch over devices itself", _PASS_INNER)
    if type(layer).__name__ == "FullyShardedDataParallel":
        raise UnsupportedModel(path, "each process has only a part of its weights", _PASS_INNER)
    if isinstance(layer, torch.jit.ScriptModule):
        raise UnsupportedModel(path, "TorchScript does not expose the running layer", "pass the original module")
    if isinstance(layer, nn.SyncBatchNorm) and layer.training and joined().count > 1:
        raise UnsupportedModel(
            path,
            "it takes the statistics of all processes' batches, in an exchange within the step",
            "pass the module as it was before convert_sync_batchnorm",
        )
    hook = getattr(layer, "_hf_hook", None)
    if any(getattr(each, "offload", False) for each in (hook, *getattr(hook, "hooks", ()))):
        raise UnsupportedModel(
            path,
            "accelerate loads its weights when it is called",
            "pass the module as it was before it was offloaded, on the meta device if it does not fit, and choose a "
            "strategy that offloads",
        )


def _check_tensor(name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        _refuse(name, "its shape is not known yet", "call the module once on a batch, then compile it")
    if not is_dense(tensor):
        _refuse(name, "it is a sparse or nested tensor", "store a dense one, for example its to_dense()")
    is_stored = hasattr(tensor, "__tensor_flatten__")  # in other tensors, on which its operators run
    is_own_parameter = issubclass(type(tensor), nn.Parameter)  # that of a library, for its own layers
    if (has_own_operators(tensor) and not is_stored) or (
        has_own_functions(tensor) and not (is_stored or is_own_parameter)
    ):
        _refuse(
            name,
            f"its class, {type(tensor).__name__}, changes what torch's functions do",
            "store a plain tensor, for example its as_subclass(torch.Tensor)",
        )
    if tensor.is_conj() or tensor.is_neg():
        _refuse(name, "it is a conjugate or negative view of another tensor", "store its resolve_conj().resolve_neg()")


def _refuse(name: str, *cause_and_remedy: Any) -> NoReturn:
    raise UnsupportedModel(name, *cause_and_remedy)
