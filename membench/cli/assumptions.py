"""What an answer assumes of the program and the process around a step, each with the option that states it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from membench.core.hardware.device import DeviceProfile
from membench.core.units import format_bytes

if TYPE_CHECKING:
    from membench.core.step.optimizer import WeightUpdate
    from membench.core.step.workload import Workload

_GRADIENTS = {"freed": "freed", "freed_late": "freed behind the next forward pass", "kept": "zeroed in place"}


def assumptions(workload: "Workload", update: "WeightUpdate | None", device: DeviceProfile) -> Iterator[str]:
    """Yield the assumptions on which the memory of a step under plain PyTorch depends.

    Args:
        update: None: the step ends with the gradients.
        device: in the process that runs the step.
    """
    if workload.loss is not None:
        yield f"output {'held' if workload.holds_output else 'freed'} after the loss (holds_output)"
    if update is not None:
        yield f"gradients {_GRADIENTS[update.gradients]} (optimizer.gradients)"
    context_bytes = device.context_bytes
    context = "unknown memory" if context_bytes is None else format_bytes(context_bytes)
    yield f"{context} outside of the allocator (context)"
    yield f"{format_bytes(device.also_bytes) if device.also_bytes else 'nothing'} besides the step (also)"
