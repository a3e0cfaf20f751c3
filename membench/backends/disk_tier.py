"""Buffers of blocks that visit the disk, and the caller's tensors that lie in them.

A tensor of the caller whose home is the disk has memory only while its block has a buffer:

    load(block):   buffer <- disk                    the tensor is a view of the buffer
    (tasks of the host, such as torch's optimizer, use the tensor)
    store(block):  disk <- buffer
    drop(block):   the tensor is empty, of shape (0,)

A tensor that has contents of its own is ahead of the disk: the caller has made or changed it, or an optimizer has just
made it. Its next buffer is filled from it. So `restore` only has to give each tensor its contents, and after a step
that has failed nothing is lost but what the disk cannot read: a tensor whose buffer was open keeps it, and a block's
copy on the disk is replaced only by one that is whole. Such a step may have updated some weights and not others, each
together with its states.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from membench.backends.disk import DiskStore
from membench.core.errors import MembenchError

Find = Callable[[], Tensor | None]
"""Returns the caller's tensor, or None while it does not exist."""


@dataclass(frozen=True)
class _Layout:
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]

    def of(self, memory: Tensor) -> Tensor:
        """Return a tensor of this layout in memory given as bytes."""
        return memory.view(self.dtype).as_strided(self.shape, self.stride)


class DiskTier:
    """The blocks of one step that visit the disk.

    Args:
        store: has a place for each of them.
        sizes_bytes: by block.
    """

    def __init__(self, store: DiskStore, sizes_bytes: dict[int, int]) -> None:
        self.store = store
        self._sizes_bytes = sizes_bytes
        self._find: dict[int, Find] = {}
        self._layouts: dict[int, _Layout] = {}  # of tensors that have had contents
        self._buffers: dict[int, Tensor] = {}  # in which tensors of the caller lie
        self._ahead: set[int] = set()  # blocks whose buffer is ahead of the disk

    def follow(self, block: int, find: Find) -> None:
        """Let a tensor of the caller be a block's home."""
        self._find[block] = find

    # ---- work of the streams ------------------------------------------------------------------------

    def load(self, block: int, buffer: Tensor) -> None:
        """Fill a buffer with the tensor's own contents, or from the disk; before the tensor exists it stays unfilled.

        Raises:
            DiskFailed: the disk is broken.
            MembenchError: the tensor's contents are on the disk of another step.
        """
        tensor = self._tensor(block)
        if tensor is not None and tensor.numel():
            self._move_into(block, tensor, buffer)
        elif block in self.store:
            self.store.read(block, buffer)
            if tensor is not None:
                self._attach(block, tensor, buffer)
        elif tensor is not None:
            raise MembenchError(
                "a state of the optimizer has no contents: another step keeps it on its disk; call restore() of that "
                "step first"
            )

    def save(self, block: int, buffer: Tensor) -> None:
        """Write a buffer to the disk, with the contents of a tensor that has been made or replaced meanwhile.

        Raises:
            DiskFailed: the disk is full or broken; the buffer and the copy on the disk stay.
        """
        tensor = self._tensor(block)
        if tensor is not None and tensor.data_ptr() != buffer.data_ptr():
            self._move_into(block, tensor, buffer)
        if tensor is not None or block not in self._find:
            self.store.write(block, buffer)
            self._ahead.discard(block)

    def drop(self, block: int, buffer: Tensor) -> None:
        """Give a buffer back, after a write to the disk if it is ahead of that although no task has changed it.

        Raises:
            DiskFailed: see `save`.
        """
        if block in self._ahead:
            self.save(block, buffer)
        tensor = self._tensor(block)
        if tensor is not None:
            tensor.data = tensor.data.new_empty(0)
        self._buffers.pop(block, None)

    # ---- between steps ------------------------------------------------------------------------------

    def restore(self) -> None:
        """Give each tensor of the caller its contents, in memory of its own.

        Raises:
            DiskFailed: the disk is broken; tensors before the one that cannot be read have their contents.
        """
        self.detach()
        for block in self._find:
            tensor = self._tensor(block)
            if tensor is not None and not tensor.numel():
                tensor.data = self._layouts[block].of(self.contents(block))

    def contents(self, block: int) -> Tensor:
        """Return what the disk has of a block, in new memory.

        Raises:
            DiskFailed: the disk is broken.
        """
        memory = torch.empty(self._sizes_bytes[block], dtype=torch.uint8)
        self.store.read(block, memory)
        return memory

    def detach(self) -> None:
        """Let tensors keep the contents of their buffers, which the next step will use: this one has failed."""
        for block in list(self._buffers):
            tensor = self._tensor(block)
            if tensor is not None:
                tensor.data = tensor.data.clone()
        self._buffers.clear()
        self._ahead.clear()

    def _tensor(self, block: int) -> Tensor | None:
        return self._find[block]() if block in self._find else None

    def _move_into(self, block: int, tensor: Tensor, buffer: Tensor) -> None:
        """Move a tensor's contents into a buffer, which is ahead of the disk then."""
        self._layouts[block] = _Layout(tensor.dtype, tensor.shape, tensor.stride())
        self._layouts[block].of(buffer).copy_(tensor.detach())
        self._attach(block, tensor, buffer)
        self._ahead.add(block)

    def _attach(self, block: int, tensor: Tensor, buffer: Tensor) -> None:
        tensor.data = self._layouts[block].of(buffer)
        self._buffers[block] = buffer
