"""The common part of the backends of the CPU and of accelerators: blocks and buffers as torch tensors."""

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from membench.backends.base import Backend, Event
from membench.backends.disk import DiskStore
from membench.backends.disk_tier import DiskTier
from membench.backends.tensors import DeviceTensors, tensor_in
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.schedule import Compute, Free, Load, Schedule, Store
from membench.core.graph.task_graph import Block, Task, TaskGraph
from membench.core.libraries import distributed
from membench.core.libraries.torch_devices import MemoryRecorder
from membench.planning.host_memory.host_places import HostPlaces, host_places

POISON = 0xFF
"""Byte with which tests fill memory that is given back: floats read as NaN, integers as -1."""


class TensorBackend(Backend):
    """Memory of one graph on one torch device.

    Memory is allocated and freed by torch's allocator for the device, when the instruction is issued.

    Args:
        graph: captured with calls.
        device: the device of the blocks.
        groups: process groups by axis, of the collectives.

    Attributes:
        recorder: records the memory of the CPU backend's threads, if set.
        poison: overwrites a block before it is freed, for tests.
        disk: blocks that visit the disk; None: the schedule has none.
        disk_folder: where their file is made.
    """

    def __init__(
        self, graph: TaskGraph, device: torch.device, groups: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.device = device
        self.recorder: MemoryRecorder | None = None
        self.poison: Callable[[int], None] | None = None
        self.tensors = DeviceTensors(graph, device, groups)
        self._blocks = graph.blocks
        self.disk: DiskTier | None = None
        self.disk_folder = Path(tempfile.gettempdir())
        self._host: dict[int, Tensor] = {}
        self._places = HostPlaces(0, {})
        self._buffers = torch.empty(0, dtype=torch.uint8)  # host memory with these places
        self._opened: dict[int, int] = {}  # how many of a block's buffers the step has opened
        self._slack: dict[int, Tensor] = {}  # the unused rest of a space larger than its block
        self._space_bytes: dict[int, int] = {}
        self._held: Tensor | None = None
        self._host_resident: dict[int, list[Block]] = {}  # external block -> blocks in its host memory
        for block in graph.blocks:
            if block.host_location:
                self._host_resident.setdefault(block.host_location.block, []).append(block)

    def prepare(self, schedule: Schedule) -> None:
        stored = {item.block for item in schedule.instructions if isinstance(item, Load | Store)}
        if stored and self.disk is None:
            blocks = [self._blocks[block] for block in sorted(stored)]
            store = DiskStore(self.disk_folder, blocks)
            self.disk = DiskTier(store, {block.index: block.size_bytes for block in blocks})
        self._places = host_places(schedule)
        if self._places.size_bytes > len(self._buffers):
            self._buffers = self._allocate_host_memory(self._places.size_bytes)

    def bind(self, block: int, tensor: Tensor) -> None:
        """Use a tensor of the caller as the memory of an external block, on the device, on the host or on the disk."""
        if self._blocks[block].is_on_disk:
            assert self.disk is not None, "a block whose home is the disk is loaded"
            self.disk.follow(block, lambda: tensor)
            return
        if block not in self._host_resident:
            self.tensors.hold(block, tensor)
            return
        memory = _bytes_of(tensor, self._blocks[block].size_bytes)
        for resident in self._host_resident[block]:
            assert resident.host_location is not None
            start = resident.host_location.offset_bytes
            self._bind_host_memory(resident.index, memory[start : start + resident.size_bytes])

    def unbind(self, block: int) -> None:
        """Release a tensor of the caller."""
        self.tensors.release(block)
        if block in self._host_resident and not self._blocks[block].is_on_disk:
            for resident in self._host_resident[block]:
                self._unbind_host_memory(resident.index)

    @property
    def has_host_resident_blocks(self) -> bool:
        """Whether any external block is kept in host memory."""
        return bool(self._host_resident)

    def is_host_resident(self, block: int) -> bool:
        """Return whether an external block is kept in host memory."""
        return block in self._host_resident

    @abstractmethod
    def place(self, block: int, tensor: Tensor) -> Tensor:
        """Return a tensor of the caller, or a copy, where its block is kept: on the device or in host memory."""

    @abstractmethod
    def _bind_host_memory(self, block: int, memory: Tensor) -> None:
        """Use memory of the caller, as bytes, as a block's host memory."""

    @abstractmethod
    def _unbind_host_memory(self, block: int) -> None:
        """Release the caller's memory that was a block's host memory."""

    def abandon(self) -> None:
        """Release all blocks, including external ones, in the middle of a step."""
        self._finish_copies()
        if self.disk is not None:
            self.disk.detach()
        self.tensors.release_all()
        self._slack.clear()
        self._space_bytes.clear()
        self._held = None

    def _begin_buffers(self) -> None:
        """Close the buffers that the last step has left open, and whose places this one uses."""
        self._opened.clear()
        for block in self._places.starts:
            self._host.pop(block, None)

    def load(self, block: int, stream: str) -> Event:
        assert self.disk is not None, "the backend is prepared"
        return self._on_thread(partial(self.disk.load, block, self._host_buffer(block)), stream)

    def store(self, block: int, stream: str) -> Event:
        assert self.disk is not None, "the backend is prepared"
        return self._on_thread(partial(self.disk.save, block, self._host_buffer(block)), stream)

    def drop(self, block: int, stream: str) -> Event:
        return self._on_thread(partial(self._drop, block, self._host.pop(block)), stream)

    def _drop(self, block: int, buffer: Tensor) -> None:
        if self.disk is not None:
            self.disk.drop(block, buffer)
        if self.poison is not None:
            buffer.fill_(POISON)

    @abstractmethod
    def _on_thread(self, work: Callable[[], None], stream: str) -> Event:
        """Put work of the host into the queue of a stream that is a thread."""

    @abstractmethod
    def _finish_copies(self) -> None:
        """Wait for pending work of the other streams except the exchange's, ignoring its errors."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and host memory, which outlive a step, and return the caller's tensors from the disk.

        Raises:
            DiskFailed: the disk is broken.
        """

    def restore(self) -> None:
        """Give the caller's tensors back what is on the disk, until the next step.

        Raises:
            DiskFailed: the disk is broken.
        """
        if self.disk is not None:
            self.disk.restore()

    def free(self, block: int) -> None:
        if self.poison:
            self.poison(block)
        self.tensors.release(block)
        if self._space_bytes:
            self._close_space(block)

    def _run_of(self, instructions: Sequence[Compute | Free]) -> Callable[[], None]:
        """Return a function that does tasks and frees on the current stream."""
        return self.tensors.run_of(
            instructions, close_space=self._close_space, spaces=self._space_bytes, poison=self.poison
        )

    def reserve(self, block: int, space_bytes: int) -> None:
        self._space_bytes[block] = space_bytes
        self._slack[block] = self._unfilled(space_bytes - self._blocks[block].size_bytes)

    def reuse(self, block: int, dead: int) -> None:
        space_bytes = self._space_bytes.get(dead, self._blocks[dead].size_bytes)
        self.free(dead)
        self.reserve(block, space_bytes)

    def _close_space(self, block: int) -> None:
        """Free the rest of a block's space."""
        if block in self._space_bytes:
            del self._slack[block], self._space_bytes[block]

    def hold(self, size_bytes: int) -> None:
        self._held = None  # before the new one is allocated
        self._held = self._unfilled(size_bytes)

    def _average_over_processes(self, block: int, root: int | None) -> None:
        """Replace a block by its mean over the processes, on the current stream.

        Raises:
            ExchangeFailed: another process has ended, or did not answer in the group's time.
        """
        distributed.average(self.tensors.elements(block), root, repr(self._blocks[block].name))

    def _encoding(self, block: int, encoded: int, codec: ActivationCodec) -> Callable[[], object]:
        """Allocate the encoded form, and return a function that writes it."""
        self._allocate(encoded)
        target = self.tensors.as_bytes(encoded)
        return self._reading(block, lambda source: codec.encode_into(source.view(torch.float32), target))

    def _reading(self, block: int, work: Callable[[Tensor], object]) -> Callable[[], object]:
        """Return work on a block's memory, looked up now or, where a task has yet to make the block, when it runs."""
        if self.tensors.is_resident(block):
            return partial(work, self.tensors.as_bytes(block))
        return lambda: work(self.tensors.as_bytes(block))

    def _decoding(self, block: int, encoded: int, codec: ActivationCodec) -> Callable[[], None]:
        """Allocate the block, and return a function that fills it."""
        self._allocate(block)
        target = self.tensors.as_bytes(block).view(torch.float32)
        return partial(codec.decode_into, self.tensors.as_bytes(encoded), target)

    def _allocate(self, block: int) -> None:
        """Allocate a block without filling it."""
        self.tensors.allocate(self._blocks[block])

    def _on_host(self, task: Task) -> Callable[[], None]:
        """Return a function that runs a task of the host on the buffers that its blocks have now."""
        buffers = {block: self._host[block] for block in task.reads if block in self._host}
        return self._update(task, buffers.__getitem__)

    def run_between_steps(self, task: Task) -> None:
        """Run a task of the host on what the last step has left in host memory and on the disk."""
        self._update(task, self._left)()

    def _left(self, block: int) -> Tensor:
        if self._blocks[block].is_on_disk:
            assert self.disk is not None, "a block whose home is the disk is loaded"
            return self.disk.contents(block)
        return self._host[block]

    def _update(self, task: Task, memory: Callable[[int], Tensor]) -> Callable[[], None]:
        assert self.tensors.update is not None, "the tasks of the host are those of the update"
        return partial(self.tensors.update, task, lambda value: tensor_in(memory(value.block), value))

    @abstractmethod
    def _allocate_host_memory(self, size_bytes: int) -> Tensor:
        """Return unfilled host memory of that many bytes."""

    def _host_buffer(self, block: int) -> Tensor:
        """Return a block's host buffer, at its planned place or kept: only the first step allocates host memory."""
        if block not in self._host:
            self._host[block] = self._open_buffer(block)
        return self._host[block]

    def _open_buffer(self, block: int) -> Tensor:
        size_bytes = self._blocks[block].size_bytes
        if block not in self._places.starts:
            return self._allocate_host_memory(size_bytes)
        number = self._opened.get(block, 0)
        self._opened[block] = number + 1
        start = self._places.starts[block][number]
        return self._buffers[start : start + size_bytes]

    def _unfilled(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)


def _bytes_of(tensor: Tensor, size_bytes: int) -> Tensor:
    """Return that many bytes of a tensor's memory, from its first element on."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset() * tensor.itemsize, (size_bytes,), (1,))
