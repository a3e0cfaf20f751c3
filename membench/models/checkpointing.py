"""Activation checkpointing of blocks, as pytorch/torchtitan wraps them in regions of `torch.utils.checkpoint`.

Facts of torchtitan 0.2.2: torchtitan/distributed/activation_checkpoint.py wraps each block (``"full"``), every second
one, or each with attention and every other product kept (models/llama3/infra/parallelize.py has the list of kept
operators). Its policy counts products without a bias, as Llama has no others; here those with a bias count too.
"""

from collections import defaultdict
from collections.abc import Set
from copy import deepcopy
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from membench.core.errors import MembenchError, one_line
from membench.core.libraries.torch_internals import cudnn_attention, flash_attention, memory_efficient_attention

_ATTENTION = (cudnn_attention.default, flash_attention.default, memory_efficient_attention.default)
_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


class Checkpointing(StrEnum):
    """The part of a network's blocks that the backward pass computes again."""

    NONE = "none"
    SELECTIVE = "selective"  # in each block all but attention and every other product
    EVERY_SECOND = "every_second"  # every second block
    FULL = "full"  # each block


def with_checkpointing(module: nn.Module, classes: Set[str], mode: Checkpointing) -> nn.Module:
    """Return a module's copy, with the same weights, whose blocks are regions of `torch.utils.checkpoint`.

    Args:
        classes: names of the blocks' classes. A block inside another one is a part of its region.

    Raises:
        MembenchError: the module cannot be copied.
    """
    if mode is Checkpointing.NONE:
        return module
    shared = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    try:
        copied = deepcopy(module, shared)
    except (TypeError, RuntimeError, NotImplementedError, AttributeError) as error:
        raise MembenchError(f"{type(module).__name__} cannot be copied: {one_line(error)}") from error
    options = {"context_fn": selective_contexts} if mode is Checkpointing.SELECTIVE else {}
    for number, block in enumerate(blocks_of(copied, classes)):
        if mode is not Checkpointing.EVERY_SECOND or number % 2:
            again: Any = partial(checkpoint, block.forward, use_reentrant=False, **options)
            block.forward = again
    return copied


def blocks_of(module: nn.Module, classes: Set[str]) -> list[nn.Module]:
    """Return the modules of some classes, by name, that are not inside another one of them."""
    found: list[nn.Module] = []
    for child in module.children():
        found += [child] if type(child).__name__ in classes else blocks_of(child, classes)
    return found


def selective_contexts() -> Any:
    """Return the contexts of a region that keeps attention and every other product."""
    products: defaultdict[bool, int] = defaultdict(int)

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        is_kept = operator in _ATTENTION
        if operator in _PRODUCTS:
            products[context.is_recompute] += 1
            is_kept = products[context.is_recompute] % 2 == 1
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
