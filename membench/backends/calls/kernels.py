"""How a call runs: its ATen operator, on the CPU in its mode and without temporaries, or a collective to its end.

Dropout's kernels on the CPU convert the mask in memory of their own, in addition to their outputs. Plain PyTorch, which
saves a mask of numbers, holds no such copy. Gloo gathers and scatters through buffers of its own. oneDNN's LSTM keeps
what its backward pass needs only while gradients are recorded, which a step does not do.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from membench.backends.calls.fused_calls import program_kernel
from membench.core.graph.call import Call, resolve_operator
from membench.core.graph.fused_calls import fused_calls_of
from membench.core.libraries import distributed
from membench.core.libraries.random_operators import READ_STATE, SET_STATE, random_state, set_random_state
from membench.core.libraries.torch_internals import (
    OpOverload,
    has_other_users,
    is_collective,
    process_group,
    storage_address,
    tensor_users,
    tensors_of,
    tree_map_only,
    wait_for_collective,
)


def find_kernel(call: Call, device: torch.device) -> Callable[..., Any]:
    """Return the function that runs a call on a device, with the bits of its operator."""
    own = _ON_CPU if device.type == "cpu" else _ON_OTHERS
    if program := fused_calls_of(call):
        return program_kernel(program, device, find_kernel)
    operator = resolve_operator(call)
    if call.operator in own:
        return own[call.operator]
    if is_collective(operator):
        return partial(_collective_on_cpu if device.type == "cpu" else _collective, operator)
    return operator


def _collective(operator: OpOverload, *args: Any) -> Any:
    """Run a functional collective, and make the stream that it runs on wait for its results."""
    results = operator(*args)
    for each in tensors_of(results):
        wait_for_collective(each)
    return results


def _collective_on_cpu(operator: OpOverload, *args: Any) -> Any:
    """Run a functional collective, and wait until Gloo's thread has let go of its tensors.

    The thread holds them a little longer, and would otherwise be the one to free their memory.
    """
    aliases = tree_map_only(Tensor, Tensor.detach, args)
    results = _collective(operator, *aliases)
    given = {storage_address(each.untyped_storage()) for each in tensors_of(args)}
    made = [each for each in tensors_of(results) if storage_address(each.untyped_storage()) not in given]
    held = [*tensors_of(aliases), *made]
    while any(tensor_users(each) > 1 for each in held) or any(map(has_other_users, made)):
        time.sleep(_POLL_S)
    return results


_POLL_S = 1e-5


def _reduce_scatter_on_cpu(whole: Tensor, operation: str, ranks: int, group: Any) -> Tensor:
    """Return this rank's part of a sum, by an all-reduce in a copy in memory of Python's, as Gloo makes it."""
    processes = process_group(group)
    copy = torch.frombuffer(bytearray(whole.nbytes), dtype=whole.dtype).view(whole.shape).copy_(whole)
    return distributed.all_reduce(copy, operation, processes).chunk(ranks)[processes.rank()].clone()


def _all_reduce_on_cpu(tensor: Tensor, operation: str, group: Any) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    return distributed.all_reduce(total, operation, process_group(group))


def _all_gather_on_cpu(part: Tensor, ranks: int, group: Any) -> Tensor:
    whole = part.new_empty((ranks * part.shape[0], *part.shape[1:]))
    return distributed.all_gather(part, ranks, process_group(group), out=whole)


def _native_dropout(
    activation: Tensor, probability: float, train: bool | None, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    if train is False or not activation.numel():
        return torch.ops.aten.native_dropout.default(activation, probability, train)
    kept = 1 - probability
    mask = torch.empty_like(activation, dtype=torch.bool).bernoulli_(kept, generator=generator)
    # the operator multiplies by a mask of scales, which have the activation's precision
    scale = torch.full((), 1 / kept if kept else 0.0, dtype=activation.dtype).item()
    return torch.empty_like(activation).copy_(mask).mul_(activation).mul_(scale), mask


def _native_dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor:
    if gradient.stride() != mask.stride():  # the product's layout would be the operator's choice
        return torch.ops.aten.native_dropout_backward.default(gradient, mask, scale)
    return torch.empty_like(gradient).copy_(mask).mul_(gradient).mul_(scale)


def _lstm_layer(*arguments: Any) -> tuple[Tensor, ...]:
    """Run a layer of an LSTM without recording anything else; the last argument asks for a workspace."""
    with torch.set_grad_enabled(arguments[-1]):
        return torch.ops.aten.mkldnn_rnn_layer.default(*arguments)


_ON_CPU: dict[str, Callable[..., Any]] = {
    "_c10d_functional.all_gather_into_tensor.default": _all_gather_on_cpu,
    "_c10d_functional.all_reduce.default": _all_reduce_on_cpu,
    "_c10d_functional.reduce_scatter_tensor.default": _reduce_scatter_on_cpu,
    "aten.mkldnn_rnn_layer.default": _lstm_layer,
    "aten.native_dropout.default": _native_dropout,
    "aten.native_dropout_backward.default": _native_dropout_backward,
    "_c10d_functional.all_gather_into_tensor_out.default": distributed.all_gather,
    "_c10d_functional.reduce_scatter_tensor_out.default": distributed.reduce_scatter,
    "_c10d_functional.all_reduce_.default": distributed.all_reduce,
    "c10d.recv_.default": distributed.receive,
    "c10d.send.default": distributed.send,
}


class _Carrier(Tensor):
    """A tensor without elements that carries a random generator's state, which lies in host memory."""

    state: Tensor


def _carried_random_state(device_type: str) -> Tensor:
    carrier = torch.empty(0, dtype=torch.uint8).as_subclass(_Carrier)
    carrier.state = random_state(device_type)
    return carrier


def _set_carried_random_state(carrier: Tensor, device_type: str) -> None:
    assert isinstance(carrier, _Carrier)
    set_random_state(carrier.state, device_type)


_ON_OTHERS: dict[str, Callable[..., Any]] = {READ_STATE: _carried_random_state, SET_STATE: _set_carried_random_state}
"""A state is in host memory, and takes none of the device."""
