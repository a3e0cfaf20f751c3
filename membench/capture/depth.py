"""The depth of a network whose blocks are alike, copies of it with few blocks, and its graph made of theirs.

A deep network is captured in ten times the time of one with few blocks. Where each block has the class, the attributes, the weights and
the buffers of another, the first two and the last two may still be run in another way, and odd ones in another way than even ones, as
where every second block is checkpointed; those in the middle repeat (`membench.capture.deepened`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from membench.core.arguments import call_with, tensors_in
from membench.core.torch_internals import TorchDispatchMode, is_wrapper_subclass, operator_schema, read_number
from membench.core.workload import Workload

AT_THE_ENDS = 2
"""Blocks at each end of a shallow copy that stand for themselves."""
PERIOD = 2
"""In which blocks in the middle may differ."""


@dataclass(frozen=True)
class Depth:
    """The depth of a network whose blocks are alike.

    Attributes:
        container: name of the list of its blocks.
        blocks: their number.
    """

    container: str
    blocks: int

    @classmethod
    def of(cls, module: nn.Module, blocks: Sequence[str]) -> "Depth | None":
        """Return the depth of a module; None where its blocks differ, or are few.

        Args:
            blocks: names of its blocks, in order.
        """
        container = blocks[0].rpartition(".")[0] if blocks else ""
        if not container or not isinstance(module.get_submodule(container), nn.ModuleList | nn.Sequential):
            return None
        listed = list(module.get_submodule(container).children())
        names = [f"{container}.{number}" for number in range(len(listed))]
        kinds = [_kind(block) for block in listed]
        depth = cls(container, len(listed))
        is_alike = names == list(blocks) and all(map(_are_alike, kinds, kinds[PERIOD:]))
        return depth if is_alike and depth.blocks > depth.shallow else None

    @classmethod
    def greatest(cls, module: nn.Module) -> "Depth | None":
        """Return the depth of a module by its longest list of blocks; None where these differ, or are few."""
        lists = [
            (name, len(each))
            for name, each in module.named_modules()
            if name and isinstance(each, nn.ModuleList | nn.Sequential)
        ]
        if not lists:
            return None
        container, blocks = max(lists, key=lambda listed: listed[1])
        return cls.of(module, [f"{container}.{number}" for number in range(blocks)])

    @property
    def shallow(self) -> int:
        """Blocks of a copy that has what all have."""
        return 2 * AT_THE_ENDS + PERIOD + self.blocks % PERIOD

    def with_blocks(self, blocks: int) -> "Depth":
        """Return the depth of a copy."""
        return Depth(self.container, blocks)

    def copy(self, module: nn.Module, blocks: int) -> nn.Module:
        """Return a copy of a module with fewer blocks; the weights are those of the module."""
        shared: dict[int, Any] = {id(each): each for each in chain(module.parameters(), module.buffers())}
        copied = deepcopy(module, shared)
        listed: Any = copied.get_submodule(self.container)
        copied.set_submodule(self.container, listed[:blocks])
        return copied

    def source(self, block: int, shallow: int) -> int:
        """Return the block of a copy that stands for one of the module.

        Args:
            shallow: blocks of the copy.
        """
        if block < AT_THE_ENDS:
            return block
        if block >= self.blocks - AT_THE_ENDS:
            return shallow - (self.blocks - block)
        return AT_THE_ENDS + (block - AT_THE_ENDS) % PERIOD

    def repeats(self, workload: Workload) -> bool:
        """Return whether a step on the meta device runs the operators that those of two copies with few blocks lead to expect.

        It tells apart a network that treats one of its blocks in another way, in seconds: operators and the layouts that they read are
        compared, and in the forward pass how far back each tensor was made, or weight was read.
        """
        few = self.shallow
        first, second, whole = (
            _operators(workload, partial(self.copy, blocks=blocks), self.container)
            for blocks in (few, few + PERIOD, self.blocks)
        )
        if whole is None or first is None or second is None:
            return False
        rounds = (self.blocks - few) // PERIOD
        keys = first.keys() | second.keys() | whole.keys()
        return all(whole[key] == first[key] + rounds * (second[key] - first[key]) for key in keys)


def _kind(block: nn.Module) -> list[tuple[object, ...]]:
    """Return what tells blocks apart: classes of modules with their attributes, and layouts of weights and buffers."""
    return [
        *(
            (name, type(each), *attribute)
            for name, each in block.named_modules()
            for attribute in _attributes(each)
        ),
        *(
            (name, each.shape, each.dtype, each.requires_grad, getattr(each, "placements", None))
            for name, each in block.named_parameters()
        ),
        *((name, each.shape, each.dtype) for name, each in block.named_buffers()),
    ]


def _attributes(module: nn.Module) -> Iterator[tuple[object, ...]]:
    """Yield the attributes of a module: numbers, words and tuples, the lengths of tables such as those of hooks, types of others."""
    for name, value in vars(module).items():
        if isinstance(value, bool | int | float | str | None | tuple | torch.dtype):
            yield name, type(value), value
        else:
            yield name, type(value), len(value) if isinstance(value, dict | list | set) else None


def _are_alike(first: list[tuple[object, ...]], second: list[tuple[object, ...]]) -> bool:
    """Return whether two blocks at a distance of `PERIOD` are alike, but for a number of their own that counts them."""
    return len(first) == len(second) and all(
        one[:-1] == other[:-1] and (one[-1] == other[-1] or _counts(one[-1], other[-1]))
        for one, other in zip(first, second, strict=True)
    )


def _counts(first: object, second: object) -> bool:
    return type(first) is type(second) is int and second - first == PERIOD


class _Operators(TorchDispatchMode):
    """Counts operators by what they are called with, and runs one that makes a tensor once for each.

    Attributes:
        position: number of operators so far.
        first_block: position at which the first block begins.
        is_forward: which tensors operators read is compared, too; in the backward pass that follows from the forward pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[object] = Counter()
        self.position, self.first_block, self.is_forward = 0, -1, True
        self._made: dict[object, tuple[Any, ...]] = {}
        self._seen = WeakTensorKeyDictionary()  # where tensors were made, or the caller's were read last

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        key = func, tuple(_layouts(args)), tuple(_layouts((kwargs or {}).values()))
        self.position += 1
        self.found[key, tuple(self._origins((args, kwargs))) if self.is_forward else None] += 1
        output = self._output(func, key, args, kwargs or {})
        if self.is_forward:
            for tensor in tensors_in(output):
                self._seen[tensor] = self.position, True
        return output

    def _origins(self, arguments: Any) -> Iterator[object]:
        """Yield for each tensor how many operators ago it was made, or where, if that was before the blocks."""
        for tensor in tensors_in(arguments):
            position, is_made = self._seen.get(tensor, (None, False))
            is_near = position is not None and position >= self.first_block
            yield self.position - position if is_near else position
            if not is_made:
                self._seen[tensor] = self.position, False

    def _output(self, func: Any, key: object, args: Any, kwargs: Any) -> Any:
        if func is read_number:  # any value, as long as it is the same in all steps
            return torch.zeros((), dtype=args[0].dtype).item()
        if key in self._made:
            shape, stride, dtype = self._made[key]
            return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        output = func(*args, **kwargs)
        if isinstance(output, Tensor) and not any(
            each.alias_info for each in operator_schema(func).arguments
        ):
            self._made[key] = output.shape, output.stride(), output.dtype
        return output


def _layouts(arguments: Iterable[Any]) -> Iterator[object]:
    for each in arguments:
        if isinstance(each, Tensor):
            yield each.shape, each.stride(), each.dtype
        elif isinstance(each, list | tuple):
            yield tuple(_layouts(each))
        else:
            yield repr(each)


def _operators(
    workload: Workload, of: Callable[[nn.Module], nn.Module], container: str
) -> Counter[object] | None:
    """Return how often a step on the meta device calls each operator; None where it does not run there.

    Args:
        of: makes the module that runs of that of the workload.
        container: name of the list of its blocks.
    """
    module, loss = workload.module, workload.loss
    weights, given = (*module.parameters(), *module.buffers()), (workload.inputs, workload.targets)
    has_data = not all(each.is_meta for each in chain(weights, *map(tensors_in, given)))
    if loss is None or has_data or any(map(is_wrapper_subclass, weights)):
        return None
    with (
        suppress(Exception),
        torch.enable_grad(),
        _Operators() as operators,
    ):  # whatever a user's classes raise
        made = of(module)

        def begin(*_: Any) -> None:
            if operators.first_block < 0:
                operators.first_block = operators.position + 1

        next(made.get_submodule(container).children()).register_forward_pre_hook(begin)
        result = call_with(loss, workload.targets, call_with(made, workload.inputs))
        operators.is_forward = False
        trained = [each for each in made.parameters() if each.requires_grad]
        torch.autograd.grad(result, trained, allow_unused=True)
        return operators.found
    return None
