"""What the CPU and the CUDA backend do alike: blocks, spaces and host buffers are torch tensors."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from membench.backends.base import Backend
from membench.backends.tensors import DeviceTensors
from membench.core import distributed
from membench.core.codec import ActivationCodec
from membench.core.task_graph import Block, TaskGraph


class TensorBackend(Backend):
    """Memory of one graph on one torch device.

    Memory is taken and given back by torch's allocator for the device, when the instruction is issued.

    Args:
        graph: captured with calls.
        device: where blocks live.
    """

    def __init__(self, graph: TaskGraph, device: torch.device) -> None:
        self.device = device
        self.tensors = DeviceTensors(graph, device)
        self._blocks = graph.blocks
        self._host: dict[int, Tensor] = {}
        self._slack: dict[int, Tensor] = {}  # what a block leaves unused of a space larger than itself
        self._space_bytes: dict[int, int] = {}
        self._held: Tensor | None = None
        self._visitors: dict[int, list[Block]] = {}  # the caller's block -> blocks whose home is in it
        for block in graph.blocks:
            if block.home:
                self._visitors.setdefault(block.home.block, []).append(block)

    def bind(self, block: int, tensor: Tensor) -> None:
        """Let a block lie in a tensor of the caller's; where its home is the host, whatever visits comes from there."""
        if block not in self._visitors:
            self.tensors.hold(block, tensor)
            return
        memory = _bytes_of(tensor, self._blocks[block].size_bytes)
        for visitor in self._visitors[block]:
            assert visitor.home is not None
            start = visitor.home.offset_bytes
            self._settle(visitor.index, memory[start : start + visitor.size_bytes])

    def unbind(self, block: int) -> None:
        """Let go of a tensor of the caller's."""
        self.tensors.release(block)
        for visitor in self._visitors.get(block, ()):
            self._leave(visitor.index)

    @property
    def has_visitors(self) -> bool:
        """Whether anything of the caller's lives on the host."""
        return bool(self._visitors)

    def lives_on_host(self, block: int) -> bool:
        """Return whether the home of a block of the caller's is the host."""
        return block in self._visitors

    @abstractmethod
    def place(self, block: int, tensor: Tensor) -> Tensor:
        """Return a tensor of the caller's where its block lives: itself, or a copy there."""

    @abstractmethod
    def _settle(self, block: int, memory: Tensor) -> None:
        """Make memory of the caller's, as bytes, a block's home."""

    @abstractmethod
    def _leave(self, block: int) -> None:
        """Let go of the caller's memory that was a block's home."""

    def abandon(self) -> None:
        """Let go of all blocks, the caller's included, in the middle of a step."""
        self._let_copies_end()
        self.tensors.release_all()
        self._slack.clear()
        self._space_bytes.clear()
        self._held = None

    @abstractmethod
    def _let_copies_end(self) -> None:
        """Wait for what other streams still read and write, whether it succeeds or not; the exchange's excepted."""

    @abstractmethod
    def close(self) -> None:
        """Give back what outlives a step: threads, host memory."""

    def reserve(self, block: int, space_bytes: int) -> None:
        self._space_bytes[block] = space_bytes
        self._slack[block] = self._unfilled(space_bytes - self._blocks[block].size_bytes)

    def reuse(self, block: int, dead: int) -> None:
        space_bytes = self._space_bytes.get(dead, self._blocks[dead].size_bytes)
        self.free(dead)
        self.reserve(block, space_bytes)

    def free(self, block: int) -> None:
        self.tensors.release(block)
        if block in self._space_bytes:
            del self._slack[block], self._space_bytes[block]

    def hold(self, size_bytes: int) -> None:
        self._held = None  # before the new one takes memory
        self._held = self._unfilled(size_bytes)

    def _average_over_processes(self, block: int, root: int | None) -> None:
        """Put a block's mean over the processes in its place, on the caller's stream.

        Raises:
            ExchangeFailed: another process has ended, or did not answer in the group's time.
        """
        distributed.average(self.tensors.elements(block), root, repr(self._blocks[block].name))

    def _encoding(self, block: int, encoded: int, codec: ActivationCodec) -> Callable[[], None]:
        """Give the encoded form memory, and return what writes it."""
        source = self.tensors.as_bytes(block).view(torch.float32)
        self._allocate(encoded)
        return partial(codec.encode_into, source, self.tensors.as_bytes(encoded))

    def _decoding(self, block: int, encoded: int, codec: ActivationCodec) -> Callable[[], None]:
        """Give the block memory, and return what fills it."""
        self._allocate(block)
        target = self.tensors.as_bytes(block).view(torch.float32)
        return partial(codec.decode_into, self.tensors.as_bytes(encoded), target)

    def _allocate(self, block: int) -> None:
        """Give a block unfilled memory."""
        self.tensors.allocate(self._blocks[block])

    @abstractmethod
    def _take_host_memory(self, size_bytes: int) -> Tensor:
        """Return unfilled host memory of that many bytes."""

    def _host_buffer(self, block: int) -> Tensor:
        """Return a block's place on the host; it keeps it, so that a step after the first takes no host memory."""
        if block not in self._host:
            self._host[block] = self._take_host_memory(self._blocks[block].size_bytes)
        return self._host[block]

    def _unfilled(self, size_bytes: int) -> Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)


def _bytes_of(tensor: Tensor, size_bytes: int) -> Tensor:
    """Return that much of the memory in which a tensor lies, from its first element on."""
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(
        tensor.untyped_storage(), tensor.storage_offset() * tensor.itemsize, (size_bytes,), (1,)
    )
