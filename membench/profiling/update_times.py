"""The cost of an optimizer's update on a device: its states, its temporaries and its time, measured on a copy."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from membench.capture.update.update_recorder import state_tensors
from membench.core.errors import MembenchError, one_line
from membench.core.libraries.random_operators import forked_random_state
from membench.core.libraries.torch_internals import storage_address
from membench.core.step.optimizer import copy_of_optimizer
from membench.core.step.stored import single_stored
from membench.execution.measurement import peaks_bytes, synchronize

_AFTER_THE_STEP = "leave optimizer out, and update the weights after the step"


@dataclass(frozen=True)
class UpdateCost:
    """The measured cost of an update.

    Attributes:
        states: bytes of each state on the device by its name, by the weight's name.
        workspace_bytes: peak of the temporaries.
        time_s: seconds of a step of the optimizer, the host's included.
    """

    states: Mapping[str, Mapping[str, int]]
    workspace_bytes: int
    time_s: float


def measure_update(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, nn.Parameter], device: torch.device
) -> UpdateCost:
    """Step a copy of an optimizer, on weights and gradients of zeros; neither it nor the weights change.

    Takes as much memory as an update: weights, gradients, states and temporaries.

    Args:
        weights: those to update, by name: all with a gradient, or a part of them.

    Raises:
        MembenchError: the optimizer cannot be copied, or its step needs arguments or takes more memory each time.
    """
    name = type(optimizer).__name__
    copies, updated = _copies(optimizer, weights, device), set(map(id, weights.values()))
    others = [weight for weight in optimizer.state if id(weight) not in updated]
    with forked_random_state(device):
        try:
            copied = copy_of_optimizer(optimizer, copies, others)
            for weight in weights.values():
                copies[id(weight)].grad = torch.zeros_like(copies[id(weight)])
            copied.step()  # makes the states
            first, second = peaks_bytes([copied.step, copied.step], device)
        except (AttributeError, TypeError, RuntimeError, ValueError) as error:
            raise MembenchError(
                f"the update of {name} cannot be measured on a copy of it ({one_line(error)}); {_AFTER_THE_STEP}"
            ) from error
        if second != first:
            raise MembenchError(
                f"{name} holds {second - first:,} bytes more after each update, so the step has no peak that could be "
                f"planned; {_AFTER_THE_STEP}"
            )
        time_s = _time_s(copied.step, device)
    names: dict[Tensor, str] = {copies[id(weight)]: name for name, weight in weights.items()}
    states: dict[str, dict[str, int]] = {name: {} for name in weights}
    for of_weight, state in copied.state.items():
        states[names.get(of_weight, next(iter(weights)))].update(_sizes_bytes(state, device))
    return UpdateCost(states, first, time_s)


def _copies(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, nn.Parameter], device: torch.device
) -> dict[int, nn.Parameter]:
    """Return copies of an optimizer's weights by identity: zeros of those to update, nothing of others."""
    updated = set(map(id, weights.values()))
    return {
        id(weight): nn.Parameter(
            torch.zeros_like(single_stored(weight), device=device)
            if id(weight) in updated
            else torch.empty(0, device=device),
            weight.requires_grad,
        )
        for group in optimizer.param_groups
        for weight in group["params"]
    }


def _time_s(run: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    start_s = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start_s


def _sizes_bytes(state: object, device: torch.device) -> Iterator[tuple[str, int]]:
    """Yield the name and the bytes of each tensor of one weight's state that lies on the device."""
    seen = set()
    for name, tensor in state_tensors(state):
        storage = tensor.untyped_storage()
        if tensor.device.type == device.type and storage_address(storage) not in seen:
            seen.add(storage_address(storage))
            yield name, storage.nbytes()
