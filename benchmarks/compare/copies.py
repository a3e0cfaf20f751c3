"""What a method copies between the device and the host, counted as it runs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from membench.core.libraries.torch_internals import TorchDispatchMode, storage_address


@dataclass(frozen=True)
class Copies:
    """Bytes copied in one step.

    Attributes:
        repeated_bytes: bytes to the host from storages that were copied unchanged before, within the step.
        weight_bytes: bytes to the host from weights, which the host could have kept.
    """

    to_host_bytes: int = 0
    to_device_bytes: int = 0
    repeated_bytes: int = 0
    weight_bytes: int = 0


class CopyMeter:
    """Counts copies.

    Args:
        weights: tensors that are on the device before and after a step.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = {storage_address(weight.untyped_storage()) for weight in weights}
        self.clear()

    def clear(self) -> None:
        self._to_host = self._to_device = self._repeated = self._of_weights = 0
        self._copied: dict[int, tuple[StorageWeakRef, int]] = {}

    @property
    def copies(self) -> Copies:
        """What was copied since `clear`."""
        return Copies(self._to_host, self._to_device, self._repeated, self._of_weights)

    def leaves(self, tensor: Tensor) -> None:
        """Count a copy to the host. A weak reference keeps a storage's address from being given to another one."""
        self._to_host += tensor.nbytes
        storage = tensor.untyped_storage()
        address = storage_address(storage)
        if address in self._weights:
            self._of_weights += tensor.nbytes
        before = self._copied.get(address)
        if before is not None and before[1] == tensor._version:
            self._repeated += tensor.nbytes
        else:
            self._copied[address] = StorageWeakRef(storage), tensor._version

    def returns(self, tensor: Tensor) -> None:
        """Count a copy to the device."""
        self._to_device += tensor.nbytes


class HostMemory(TorchFunctionMode):
    """Host memory of a run on the CPU, where torch would not copy: apart from the memory that torch's allocator gives.

    Within it ``tensor.cpu()`` copies to numpy's memory, as membench's CPU backend does, and ``.to()`` of such a copy
    copies back to torch's.
    """

    def __init__(self, meter: CopyMeter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.cpu:
            return self._on_host(args[0])
        if func is Tensor.to and getattr(args[0], "is_in_host_memory", False):
            self._meter.returns(args[0])
            return torch.empty_like(args[0]).copy_(args[0])
        return func(*args, **(kwargs or {}))

    def _on_host(self, tensor: Tensor) -> Tensor:
        self._meter.leaves(tensor)
        like = torch.empty_like(tensor, device="meta")
        memory = torch.from_numpy(np.empty(like.untyped_storage().nbytes(), dtype=np.uint8))
        copy = memory.view(tensor.dtype).as_strided(like.shape, like.stride())
        copy.copy_(tensor.detach())
        copy.is_in_host_memory = True  # type: ignore[attr-defined]
        return copy


class CopiesBetweenDevices(TorchDispatchMode):
    """Counts the copies between a GPU and the host that torch's operators do."""

    def __init__(self, meter: CopyMeter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.copy_.default:
            self._count(args[1], args[0])
        elif func is torch.ops.aten._to_copy.default:
            self._count(args[0], result)
        return result

    def _count(self, source: Tensor, target: Tensor) -> None:
        if source.device.type != "cpu" and target.device.type == "cpu":
            self._meter.leaves(source)
        elif source.device.type == "cpu" and target.device.type != "cpu":
            self._meter.returns(source)


@contextmanager
def hooks_within(hooks: torch.autograd.graph.saved_tensors_hooks, mode: HostMemory) -> Iterator[None]:
    """Run the hooks of saved tensors, and nothing else, within a mode."""

    def within(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(saved: Any) -> Any:
            with mode, torch.no_grad():
                return hook(saved)

        return run

    with torch.autograd.graph.saved_tensors_hooks(within(hooks.pack_hook), within(hooks.unpack_hook)):
        yield
