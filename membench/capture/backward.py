"""A trace's backward pass, from a loss or from gradients that the caller passes for the module's outputs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from membench.capture.recorder import Recorder
from membench.core.errors import UnsupportedModel
from membench.core.graph.task_graph import Kind, Role
from membench.core.libraries.torch_internals import multiply_each, storage_address, tree_leaves, tree_map_only
from membench.core.step.stored import with_stored


def backward_from_loss(recorder: Recorder, loss: Any, loss_scale: float) -> None:
    """Run the backward pass of a loss; gradients are in ``.grad``.

    Raises:
        UnsupportedModel: the loss is not a scalar, or does not depend on a trained weight.
    """
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UnsupportedModel("loss", f"it returns {shape}, not a scalar", "return a mean or a sum")
    if loss.grad_fn is None:
        raise UnsupportedModel(
            "loss",
            "it does not depend on any trainable weight",
            "unfreeze a weight; for the gradient of an input, make the input a torch.nn.Parameter of a small module "
            "around the network; or pass loss=None for a step of inference",
        )
    recorder.enter_backward([loss])
    with torch.autograd.set_multithreading_enabled(False):  # the recorder sees only this thread
        loss.backward(None if loss_scale == 1 else torch.full_like(loss, loss_scale))


def separate_outputs(output: Any, given: Iterable[Tensor]) -> Any:
    """Return a module's output with a copy of each tensor that shares memory with the caller's or an earlier output.

    Autograd does not know that outputs of one function share memory. A tensor of the caller that is returned as it is,
    and an output that is returned twice, stay.

    Args:
        given: the caller's tensors.
    """
    kept = {id(tensor): tensor for tensor in given}
    taken = {storage_address(tensor.untyped_storage()) for tensor in kept.values()}

    def separate(leaf: Tensor) -> Tensor:
        if id(leaf) not in kept:
            shares = storage_address(leaf.untyped_storage()) in taken
            kept[id(leaf)] = own = leaf.clone() if shares else leaf
            taken.add(storage_address(own.untyped_storage()))
            kept.setdefault(id(own), own)
        return kept[id(leaf)]

    return tree_map_only(Tensor, separate, output)


def backward_from_caller(recorder: Recorder, output: Any, given: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Record the turn, and run the backward pass from there; gradients are in ``.grad``.

    The gradients of the outputs are recorded as the results of one task that needs every output, a product with a
    number; in place of running it, a step takes what its caller passes.

    Args:
        output: see `separate_outputs`.
        given: the caller's tensors, which need no gradient here when they are returned.

    Returns:
        Each output that depends on a weight or an input that is trained, and its gradient.
    """
    theirs = {id(tensor) for tensor in given}
    made = {id(leaf): leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and id(leaf) not in theirs}
    recorder.layers.enter_loss("turn")
    reads = tuple(dict.fromkeys(recorder.value(leaf).block for leaf in made.values()))
    roots = [leaf for leaf in made.values() if leaf.requires_grad]
    if not roots:
        return []
    with torch.no_grad():
        gradients = multiply_each(roots, 1.0)
    recorder.tasks[-1] = replace(recorder.tasks[-1], name="turn", kind=Kind.LOSS, reads=reads)
    for position, gradient in enumerate(gradients):
        block = recorder.value(gradient).block
        name = f"output{position}:gradient"
        recorder.blocks[block] = replace(recorder.blocks[block], name=name, role=Role.OUTPUT_GRADIENT)
    recorder.enter_backward(roots)
    with torch.autograd.set_multithreading_enabled(False):
        torch.autograd.backward(roots, gradients)
    return list(zip(roots, gradients, strict=True))


def own_gradients(leaves: Sequence[Tensor], given: Iterable[Tensor]) -> list[Tensor | None]:
    """Return each leaf's gradient in memory of its own, None where there is none, or it is an earlier leaf's.

    Args:
        given: tensors whose memory is not the step's.
    """
    taken = {storage_address(tensor.untyped_storage()) for tensor in given}

    def own(gradient: Tensor) -> Tensor:
        if _needs_own_storage(gradient, taken):
            gradient = gradient.clone(memory_format=torch.contiguous_format)
        taken.add(storage_address(gradient.untyped_storage()))
        return gradient

    found: dict[int, Tensor | None] = {}
    for leaf in leaves:
        if id(leaf) not in found:
            found[id(leaf)] = None if leaf.grad is None else with_stored(leaf.grad, own)
    return [found.pop(id(leaf), None) for leaf in leaves]


def _needs_own_storage(gradient: Tensor, taken: set[int]) -> bool:
    storage = gradient.untyped_storage()
    return storage_address(storage) in taken or storage.nbytes() != gradient.numel() * gradient.itemsize
