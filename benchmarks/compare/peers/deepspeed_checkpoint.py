"""DeepSpeed's activation checkpointing around each block."""

import torch
from torch._C._distributed_c10d import HashStore

from benchmarks.compare.peers.peer import Blocks, Peer, with_blocks_called_by
from benchmarks.compare.step import Step, plain_step
from membench.core.errors import UnsupportedStrategy
from membench.core.step.workload import Workload


class DeepSpeedCheckpoint(Peer):
    """Keep each block's inputs and recompute the rest, by its own reentrant function."""

    def step(self, workload: Workload, blocks: Blocks) -> Step:
        try:
            import deepspeed
            from deepspeed.runtime.activation_checkpointing import checkpointing
        except ImportError as error:
            raise UnsupportedStrategy(
                f"DeepSpeed cannot be imported ({error}); pip install 'membench[peers]'"
            ) from error
        if not torch.distributed.is_initialized():  # which it demands of one process, too
            torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        if not checkpointing.is_configured():
            deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
            checkpointing.configure(None, partition_activations=False, checkpoint_in_cpu=False)
        return plain_step(with_blocks_called_by(workload, blocks, checkpointing.checkpoint))
