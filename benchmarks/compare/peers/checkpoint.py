"""PyTorch's `torch.utils.checkpoint`, without reentrance, around each block."""

from dataclasses import dataclass
from functools import partial

from torch.utils.checkpoint import checkpoint

from benchmarks.compare.peers.peer import Blocks, Peer, with_blocks_called_by
from benchmarks.compare.step import Step, plain_step
from membench.core.step.workload import Workload


@dataclass(frozen=True)
class Checkpoint(Peer):
    """Keep each block's inputs and recompute the rest.

    Attributes:
        preserve_rng_state: False, which its documentation offers for speed, draws other random numbers in the second
            pass.
    """

    preserve_rng_state: bool = True

    def step(self, workload: Workload, blocks: Blocks) -> Step:
        call = partial(checkpoint, use_reentrant=False, preserve_rng_state=self.preserve_rng_state)
        return plain_step(with_blocks_called_by(workload, blocks, call))
