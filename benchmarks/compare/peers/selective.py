"""PyTorch's selective checkpointing: `create_selective_checkpoint_contexts` around each block."""

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from benchmarks.compare.peers.peer import Blocks, Peer, with_blocks_called_by
from benchmarks.compare.step import Step, plain_step
from membench.core.step.workload import Workload

_OPERATORS = torch.ops.aten
SAVED = frozenset(
    {
        _OPERATORS.convolution.default,
        _OPERATORS.mm.default,
        _OPERATORS.addmm.default,
        _OPERATORS.bmm.default,
        _OPERATORS.baddbmm.default,
        _OPERATORS._scaled_dot_product_flash_attention.default,
        _OPERATORS._scaled_dot_product_efficient_attention.default,
        _OPERATORS._scaled_dot_product_flash_attention_for_cpu.default,
    }
)
"""Products and convolutions, as in the documentation's example."""


def save_products(context: Any, operator: Any, *arguments: Any, **options: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


class SelectiveCheckpoint(Peer):
    """Keep the results of products and convolutions, and recompute the rest.

    Results that a layer changes in place (a ReLU after a convolution) would be refused, so that is allowed; whether
    gradients are right is measured.
    """

    def step(self, workload: Workload, blocks: Blocks) -> Step:
        contexts = partial(create_selective_checkpoint_contexts, save_products, allow_cache_entry_mutation=True)
        call = partial(checkpoint, use_reentrant=False, context_fn=contexts)
        return plain_step(with_blocks_called_by(workload, blocks, call))
