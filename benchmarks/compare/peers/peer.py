"""The interface of another tool."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from benchmarks.compare.step import Step
from membench.core.step.workload import Workload

Blocks = Callable[[nn.Module], list[nn.Module]]


class Peer(ABC):
    """A tool with fixed options."""

    @abstractmethod
    def step(self, workload: Workload, blocks: Blocks) -> Step:
        """Return the workload's step under this tool; the workload's own module stays as it is.

        Args:
            blocks: return the blocks of a module that are checkpointed.

        Raises:
            UnsupportedStrategy: the tool is not installed, or cannot run on this device; contains the reason.
        """


def with_same_weights(workload: Workload) -> Workload:
    """Return the workload with a copy of its module that has the same weights and buffers of its own."""
    shared = {id(weight): weight for weight in workload.module.parameters()}
    return replace(workload, module=copy.deepcopy(workload.module, shared))


def with_blocks_called_by(workload: Workload, blocks: Blocks, call: Callable[..., Any]) -> Workload:
    """Return the workload with a copy of its module, whose blocks are called as ``call(block.forward, *arguments)``."""
    changed = with_same_weights(workload)
    for block in blocks(changed.module):
        block.forward = partial(_called, call, block.forward)
    return changed


def _called(call: Callable[..., Any], forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a block; the maps of a list, to which DenseNet appends before they are recomputed, one by one."""
    if len(arguments) == 1 and isinstance(arguments[0], list):
        return call(lambda *maps: forward(list(maps)), *arguments[0])
    return call(forward, *arguments, **options)
