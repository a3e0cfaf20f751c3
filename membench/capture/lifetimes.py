"""Lifetimes of a trace's tensors: those that Python's variables and autograd give them in plain PyTorch.

Nothing here keeps a tensor alive. A weak reference to each storage shows when the last tensor in it has died.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from weakref import ref

import torch
from torch import Tensor

from membench.core.libraries.torch_internals import FakeTensor, saved_tensor, storage_address, view_base


@dataclass(frozen=True, slots=True)
class KeptNumber:
    """A number of Python's that autograd keeps for the backward pass, as a tensor in host memory.

    Attributes:
        made, released: the number of tasks recorded by then.
    """

    dtype: torch.dtype
    made: int
    released: int


class Lifetimes:
    """The block of each storage that lives, and when blocks and kept numbers die.

    Args:
        tasks: recorded so far; grows.

    Attributes:
        blocks: by the address of each storage that lives.
        releases: the number of tasks recorded when a block's last storage died, and the block, in order.
        numbers: those that died.
    """

    def __init__(self, tasks: Sequence[object]) -> None:
        self.blocks: dict[int, int] = {}
        self.releases: list[tuple[int, int]] = []
        self.numbers: list[KeptNumber] = []
        self._tasks = tasks
        self._living: Counter[int] = Counter()  # storages of each block
        self._deaths: dict[int, ref[torch.UntypedStorage]] = {}
        # what the last operator returned, and its arguments that are numbers, if its node may keep one
        self._unseen: tuple[Tensor | None, tuple[str, ...]] = (None, ())

    def follow(self, tensor: Tensor, block: int) -> None:
        """Note the block that a tensor's storage belongs to, until it dies."""
        storage = tensor.untyped_storage()
        address = storage_address(storage)
        if address not in self.blocks:
            self.blocks[address] = block
            self._living[block] += 1
            self._deaths[address] = ref(storage, partial(self._release, address))

    def is_new(self, output: object) -> bool:
        """Return whether an operator's output is a tensor in a storage that is not followed."""
        return isinstance(output, Tensor) and storage_address(output.untyped_storage()) not in self.blocks

    def _release(self, address: int, _: object) -> None:
        del self._deaths[address]
        block = self.blocks.pop(address)
        self._living[block] -= 1
        if not self._living[block]:
            self.releases.append((len(self._tasks), block))

    def expect_numbers(self, output: Tensor, arguments: tuple[str, ...]) -> None:
        """Note that an operator has run on numbers in place of tensors; its autograd node is made after it returns."""
        # the node of a view that is overwritten is made anew under a lock, in which asking for it never ends
        self._unseen = (output, arguments) if view_base(output) is None else (None, ())

    def follow_numbers(self) -> None:
        """Follow the numbers that the last operator's node keeps."""
        (output, arguments), self._unseen = self._unseen, (None, ())
        if output is None or output.grad_fn is None:
            return
        for argument in arguments:
            saved = saved_tensor(output.grad_fn, argument)
            if saved is not None and not isinstance(saved, FakeTensor):
                storage = saved.untyped_storage()
                died = partial(self._release_number, storage_address(storage), saved.dtype, len(self._tasks))
                self._deaths[storage_address(storage)] = ref(storage, died)

    def _release_number(self, address: int, dtype: torch.dtype, made: int, _: object) -> None:
        del self._deaths[address]
        self.numbers.append(KeptNumber(dtype, made, len(self._tasks)))
