"""Sharding: how the ranks of an axis divide the weights of a module, their gradients and the optimizer's states."""

from dataclasses import dataclass

import torch

SHARDED, REPLICATED = "fsdp", "dp"
"""Axes of a mesh: over whose ranks weights are divided, and over whose ranks these shards are repeated."""


@dataclass(frozen=True)
class Sharding:
    """Fully sharded data parallelism, as torch's `fully_shard` has it.

    FSDP2; ZeRO stage 3 (Rajbhandari et al. 2020, Section 5).

    Attributes:
        ranks: over which each weight is divided.
        members: names of the weights that are divided; None: all.
        shapes: shapes of the weights, by name.
        dimension: along which weights are divided.
        groups: names of the weights that are gathered together, those of one wrapped module; all others are the root's,
            which are gathered once for both passes.
        reshard_after_forward: gathered weights are given back after the forward pass, and gathered again for the
            backward pass.
        kept_dtypes: dtypes of the shards, which the optimizer updates, and of their gradients, by the weight's name; a
            weight not named keeps the dtype in which it is gathered, as a packed one does.
        reduce_dtype: in which gradients are added up over the ranks; None: that in which they are computed.
        copies_out: collectives have buffers of their own, from and into which weights and gradients are copied (FSDP2).
            Otherwise the weights of a group are views of one gathered tensor (FSDP1).
        replicas: axis over whose ranks the shards are repeated (hybrid sharding); empty: none.
        axis: over whose ranks the weights are divided.
        accumulates: gradients are added to those of the micro-batches before.
        in_between: a micro-batch between the first and the last one under ``no_sync``: gradients are not exchanged, and
            those of all weights of a group, trained or not, are whole.
    """

    ranks: int
    groups: tuple[tuple[str, ...], ...]
    reshard_after_forward: bool = True
    kept_dtypes: tuple[tuple[str, torch.dtype], ...] = ()
    reduce_dtype: torch.dtype | None = None
    copies_out: bool = True
    replicas: str = ""
    axis: str = SHARDED
    accumulates: bool = False
    in_between: bool = False
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    members: frozenset[str] | None = None
    dimension: int = 0
